"""A job's status in one word of the SDKs, and waiting for such a word.

v1 has six words, v2 has four. `TrainerJob` is what `create_job` returns: a name, a status in v1's words,
and results, which no SDK has. `wait_for_report` has a deadline and raises if the job fails unexpectedly.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from windlass.client.jobs.job import Job
from windlass.engines.protocol import Engine
from windlass.kube.diagnosis.blocker import NOT_ADMITTED, QUEUE_MISSING, QUEUE_TOO_SMALL, SUSPENDED
from windlass.near_names import did_you_mean
from windlass.trainer.sdk_errors import JobFailed, NotInTime, WrongArgument
from windlass.trainer.types import UNKNOWN
from windlass.waiting import wait_until
from windlass.wire.status import JobStatus, Phase

CREATED = "Created"
RUNNING = "Running"
RESTARTING = "Restarting"
HELD = "Suspended"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
COMPLETE = "Complete"
V1_WORDS = frozenset({CREATED, RUNNING, RESTARTING, HELD, SUCCEEDED, FAILED})
V2_WORDS = frozenset({CREATED, RUNNING, COMPLETE, FAILED})
ENDED = frozenset({SUCCEEDED, COMPLETE, FAILED, UNKNOWN})

_ENDS = {
    Phase.SUCCEEDED: SUCCEEDED,
    Phase.FAILED: FAILED,
    Phase.CANCELLED: FAILED,
    Phase.ENDED: UNKNOWN,  # how is not known any more
}
_HOLDS = frozenset({NOT_ADMITTED, QUEUE_MISSING, QUEUE_TOO_SMALL, SUSPENDED})
_V2 = {RESTARTING: RUNNING, HELD: CREATED, SUCCEEDED: COMPLETE}
_LOOK_S = 0.2  # no longer between two looks, whatever the interval: they ask nothing of a cluster


def name_v1(status: JobStatus) -> str:
    """Created, Running, Restarting, Suspended, Succeeded or Failed; Unknown where nobody knows the end."""
    if status.phase.is_final:
        return _ENDS[status.phase]
    if any(condition.reason in _HOLDS for condition in status.conditions):
        return HELD
    if status.phase in (Phase.RUNNING, Phase.STOPPING):
        return RUNNING
    return RESTARTING if status.history else CREATED


def name_v2(status: JobStatus) -> str:
    """Created, Running, Complete or Failed."""
    word = name_v1(status)
    return _V2.get(word, word)


class TrainerJob:
    """One job by the name that the user gave it."""

    def __init__(self, name: str, job: Job, engine: Engine) -> None:
        self.name = name
        self.job = job
        self.engine = engine

    def __repr__(self) -> str:
        return f"TrainerJob({self.name!r}, {str(self.job.ref)!r})"

    @property
    def status(self) -> str:
        """Now: Created, Running, Restarting, Suspended, Succeeded or Failed."""
        return name_v1(self.job.status())

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """What the function returned on every rank, in rank order; raises what it raised.

        timeout_s: how long to wait for the job's end; None: for ever.
        """
        return self.job.results(timeout_s=timeout_s)

    def exception(self, *, timeout_s: float | None = None) -> BaseException | None:
        """What made the job fail, of its own type where that can be rebuilt; None if nothing did.

        timeout_s: how long to wait for the job's end; None: for ever.
        """
        return self.job.exception(timeout_s=timeout_s)


def wait_for_report(
    known: TrainerJob,
    name_status: Callable[[JobStatus], str],
    expected: Collection[str],
    words: frozenset[str],
    *,
    timeout_s: float,
    every_s: float,
    tell: Callable[[], object] | None = None,
) -> None:
    """Wait until the status has one of the words `expected`; `tell` is called after each look."""
    _check(expected, words, timeout_s, every_s)
    seen = ""

    def is_there() -> bool:
        nonlocal seen
        seen = name_status(known.job.status())
        if tell is not None:
            tell()
        return seen in expected or seen in ENDED

    wait_until(is_there, timeout_s=timeout_s, every_s=min(every_s, _LOOK_S))
    if seen in expected:
        return
    if seen in ENDED:
        verdict = known.job.verdict()
        why = f": {verdict.message}" if verdict else ""
        hint = verdict.next if verdict else ""
        raise JobFailed(f"job {known.name} is {seen}{why}", hint=hint)
    raise NotInTime(
        f"job {known.name} is {seen} after {timeout_s:g} s, not {' or '.join(sorted(expected))}",
        hint=f"it goes on; windlass why {known.job.id}",
    )


def _check(
    expected: Collection[str], words: frozenset[str], timeout_s: float, every_s: float
) -> None:
    if isinstance(expected, str):
        raise WrongArgument(f"expected is a set of statuses, not a text: {{{expected!r}}}")
    for word in expected:
        if word not in words:
            hint = did_you_mean(word, sorted(words))
            raise WrongArgument(f"there is no status {word!r}", hint=hint)
    if every_s > timeout_s:
        raise WrongArgument(
            f"polling_interval {every_s:g} is more than the timeout {timeout_s:g}",
            hint="give a smaller one",
        )

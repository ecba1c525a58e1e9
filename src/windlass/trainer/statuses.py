"""Status names of the SDKs for a job, and waiting for one of them.

v1 has six statuses and v2 has four. `create_job` returns a `TrainerJob`: a name, a status of v1, and results,
which no SDK has. `wait_for_report` has a deadline and raises if the job fails unexpectedly.
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
    Phase.ENDED: UNKNOWN,  # the outcome is no longer known
}
_HOLDS = frozenset({NOT_ADMITTED, QUEUE_MISSING, QUEUE_TOO_SMALL, SUSPENDED})
_V2 = {RESTARTING: RUNNING, HELD: CREATED, SUCCEEDED: COMPLETE}
_POLL_S = 0.2  # longest time between two checks, which send no requests to a cluster


def name_v1(status: JobStatus) -> str:
    """Return Created, Running, Restarting, Suspended, Succeeded or Failed, or Unknown for a lost outcome."""
    if status.phase.is_final:
        return _ENDS[status.phase]
    if any(condition.reason in _HOLDS for condition in status.conditions):
        return HELD
    if status.phase in (Phase.RUNNING, Phase.STOPPING):
        return RUNNING
    return RESTARTING if status.history else CREATED


def name_v2(status: JobStatus) -> str:
    """Return Created, Running, Complete or Failed, or Unknown for an unknown outcome."""
    word = name_v1(status)
    return _V2.get(word, word)


class TrainerJob:
    """A job with the name that the user gave it."""

    def __init__(self, name: str, job: Job, engine: Engine) -> None:
        self.name = name
        self.job = job
        self.engine = engine

    def __repr__(self) -> str:
        return f"TrainerJob({self.name!r}, {str(self.job.ref)!r})"

    @property
    def status(self) -> str:
        """Current status: Created, Running, Restarting, Suspended, Succeeded or Failed."""
        return name_v1(self.job.status())

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """Return the function's result on every rank, in rank order, or raise the function's exception.

        timeout_s: longest wait for the job's end, in seconds (default: no limit).
        """
        return self.job.results(timeout_s=timeout_s)

    def exception(self, *, timeout_s: float | None = None) -> BaseException | None:
        """Return the exception that made the job fail, in its own type if possible, or None.

        timeout_s: longest wait for the job's end, in seconds (default: no limit).
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
    notify: Callable[[], object] | None = None,
) -> None:
    """Wait until the status is one of `expected`. Call `notify` after each check."""
    _check(expected, words, timeout_s, every_s)
    seen = ""

    def is_reached() -> bool:
        nonlocal seen
        seen = name_status(known.job.status())
        if notify is not None:
            notify()
        return seen in expected or seen in ENDED

    wait_until(is_reached, timeout_s=timeout_s, every_s=min(every_s, _POLL_S))
    if seen in expected:
        return
    if seen in ENDED:
        verdict = known.job.verdict()
        why = f": {verdict.message}" if verdict else ""
        hint = verdict.next if verdict else ""
        raise JobFailed(f"job {known.name} is {seen}{why}", hint=hint)
    raise NotInTime(
        f"job {known.name} is {seen} after {timeout_s:g} s, not {' or '.join(sorted(expected))}",
        hint=f"the job is still active; run `windlass why {known.job.id}` to see what it waits for",
    )


def _check(
    expected: Collection[str], words: frozenset[str], timeout_s: float, every_s: float
) -> None:
    if isinstance(expected, str):
        raise WrongArgument(f"expected must be a set of statuses, not a string: {{{expected!r}}}")
    for word in expected:
        if word not in words:
            hint = did_you_mean(word, sorted(words))
            raise WrongArgument(f"unknown status {word!r}", hint=hint)
    if every_s > timeout_s:
        raise WrongArgument(
            f"polling_interval {every_s:g} is more than the timeout {timeout_s:g}",
            hint="pass a smaller one",
        )

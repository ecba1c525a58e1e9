"""Waiting for a job to have one of some statuses, with a deadline; a failure that nobody expects raises."""

from __future__ import annotations

from collections.abc import Callable, Collection

from windlass.near_names import did_you_mean
from windlass.trainer.sdk_errors import JobFailed, NotInTime, WrongArgument
from windlass.trainer.statuses import ENDED
from windlass.trainer.v1_job import TrainerJob
from windlass.waiting import wait_until
from windlass.wire.status import JobStatus

_LOOK_S = 0.2  # no longer between two looks, whatever the interval: they ask nothing of a cluster


def wait_for_word(
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

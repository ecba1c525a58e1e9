"""Job: a handle on one job, here or elsewhere. The shape of a standard future, and a little more.

Everything is asked of the engine each time; the handle itself knows only where the job is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from windlass.client.jobs.load_values import (
    load_error,
    load_value,
    make_failure,
    make_missing_error,
)
from windlass.engines.protocol import Engine, JobRef, LogReader
from windlass.errors import RankFailed, SpecError, WaitTimeout
from windlass.waiting import wait_until
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.results import MISSING, ResultHeader
from windlass.wire.status import JobStatus, Phase, Verdict

_POLL_S = 0.05


class Job:
    """One job. `wl.submit` makes it, `wl.attach` finds it again from any process."""

    def __init__(self, engine: Engine, ref: JobRef) -> None:
        self._engine = engine
        self.ref = ref

    @property
    def id(self) -> str:
        return self.ref.job_id

    def __repr__(self) -> str:
        return f"Job({str(self.ref)!r})"

    def status(self) -> JobStatus:
        """What is known now: phase, ranks, progress, verdict."""
        return self._engine.status(self.ref)

    def done(self) -> bool:
        """Whether it has ended, in whatever way."""
        return self.status().phase.is_final

    def logs(
        self,
        *,
        follow: bool = False,
        rank: int | None = None,
        node: int | None = None,
        attempt: int | None = None,
        since: float | None = None,
        grep: str | None = None,
    ) -> Iterator[LogLine]:
        """Lines of all ranks in order, or of one; `since` is a Unix time, `grep` a regular expression."""
        query = LogQuery(
            rank=rank, node=node, attempt=attempt, since_s=since, grep=grep, follow=follow
        )
        reader = self.reader(query)
        return self._follow(reader) if follow else reader.read_all()

    def reader(self, query: LogQuery) -> LogReader:
        """The lines of this job, for whoever wants to draw them himself."""
        return self._engine.logs(self.ref, query)

    def _follow(self, reader: LogReader) -> Iterator[LogLine]:
        is_over = False
        while not is_over:
            is_over = self.done()
            while lines := reader.read_new():
                yield from lines
            if not is_over:
                wait_until(self.done, timeout_s=_POLL_S)
        yield from reader.read_rest()

    def wait(
        self, timeout_s: float | None = None, *, say: Callable[[float], None] | None = None
    ) -> JobStatus:
        """Until the job has ended; WaitTimeout when it has not by then, and the job goes on."""
        if not wait_until(self.done, timeout_s=timeout_s, say=say):
            raise WaitTimeout(
                f"{self.id} is still {self.status().phase.value} after {timeout_s:g} s",
                hint=f"it goes on; windlass status {self.id}",
            )
        return self.status()

    def result(self, rank: int = 0, *, timeout_s: float | None = None) -> Any:
        """What one rank returned; raises what made the job fail."""
        found = self.results(timeout_s=timeout_s)
        if not 0 <= rank < len(found):
            raise SpecError(f"there is no rank {rank}: the job has ranks 0 to {len(found) - 1}")
        return found[rank]

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """What every rank returned, in rank order; raises what made the job fail."""
        error = self.exception(timeout_s=timeout_s)
        if error is not None:
            raise error
        return [
            self._load(rank, found) for rank, found in enumerate(self._engine.results(self.ref))
        ]

    def exception(self, *, timeout_s: float | None = None) -> BaseException | None:
        """What made the job fail: the first failing rank's own exception where there is one."""
        status = self.wait(timeout_s)
        verdict = status.verdict
        if status.phase is Phase.SUCCEEDED or verdict is None:
            return None
        error: BaseException | None = None
        if verdict.rank is not None and verdict.exception:
            found = self._engine.results(self.ref)[verdict.rank]
            if found is not None and found[0].state == "raised":
                error = load_error(*found)
        if error is None:
            error = make_failure(verdict)
        elif hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"windlass: {verdict.message}; {verdict.next}")
        return error

    def outcomes(self) -> list[ResultHeader | None]:
        """What each rank left, without unpickling anything; also of a job that failed."""
        found = self._engine.results(self.ref, with_values=False)
        return [left[0] if left else None for left in found]

    def verdict(self) -> Verdict | None:
        """Who failed first, why, and what to do; None while there is nothing to blame."""
        return self.status().verdict

    def cancel(self, *, now: bool = False, why: str = "", interrupt: bool = False) -> None:
        """End it: ranks get SIGTERM, and SIGKILL after the grace.

        now: leave out the asking. why: what the verdict says. interrupt: ask with SIGINT, as Ctrl-C does,
        which is a KeyboardInterrupt in the ranks.
        """
        self._engine.cancel(self.ref, now=now, why=why, interrupt=interrupt)

    def remove(self) -> None:
        """Forget an ended job: logs, results, everything."""
        self._engine.remove(self.ref)

    def hold(self) -> Any:
        """A context that keeps an attached job alive while it lasts."""
        return self._engine.hold(self.ref)

    @staticmethod
    def _load(rank: int, found: tuple[ResultHeader, bytes] | None) -> Any:
        if found is None:  # only functions have one
            return None
        if found[0].state == MISSING:
            raise make_missing_error(found[0])
        if found[0].state != "returned":
            raise RankFailed(f"rank {rank} left no result")
        return load_value(*found)

"""Job, a handle on one job with an interface like a future, and the job's values.

The handle knows only where the job is, and asks the engine each time. Values are unpickled. Exceptions are
raised with their own type, and their cause is the remote traceback. An exception that cannot be unpickled
here becomes a RemoteError with its name. `Interrupts` ends a job on Ctrl-C and SIGTERM.
"""

from __future__ import annotations

import pickle
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

from windlass import errors
from windlass.engines.protocol import Engine, JobRef, LogReader
from windlass.errors import RankFailed, SpecError, WaitTimeout
from windlass.waiting import wait_until
from windlass.wire.log_lines import LogLine, LogQuery
from windlass.wire.results import MISSING, ErrorInfo, ResultHeader
from windlass.wire.states import RankState
from windlass.wire.status import FailureKind, JobStatus, Phase, Verdict

_POLL_S = 0.05


class RemoteTraceback(Exception):
    """Traceback from a rank, exactly as its interpreter printed it."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return f"\n{self.text.rstrip()}"


def load_value(header: ResultHeader, payload: bytes) -> Any:
    """Return the value that a rank returned."""
    try:
        return pickle.loads(payload)  # noqa: S301 - written by a rank of the user's own job
    except Exception as error:
        raise errors.RemoteError(
            f"rank {header.rank} returned {header.repr:.200}, which cannot be unpickled here: "
            f"{type(error).__name__}: {error}",
            hint="make its modules importable here, or return plain values",
        ) from error


def load_error(header: ResultHeader, payload: bytes) -> BaseException:
    """Return the exception that a rank raised, with its own type if it can be unpickled."""
    info = header.error or ErrorInfo(type="", message="unknown")
    error = _rebuild(info, payload)
    error.__cause__ = RemoteTraceback(f"rank {header.rank}:\n{info.traceback}")
    return error


def _rebuild(info: ErrorInfo, payload: bytes) -> BaseException:
    module, _, name = info.type.rpartition(".")
    if module == errors.__name__ and isinstance(getattr(errors, name, None), type):
        message, _, hint = info.message.partition("\n  hint: ")
        ours: BaseException = getattr(errors, name)(message, hint=hint)
        return ours
    try:
        error = pickle.loads(payload)  # noqa: S301 - written by a rank of the user's own job
    except Exception as why:  # noqa: BLE001 - a user's class may fail in any way
        reason = f"{type(why).__name__}: {why}" if payload else "it could not be pickled"
        return errors.RemoteError(f"{info.type}: {info.message} (not unpickled here: {reason})")
    return error if isinstance(error, BaseException) else errors.RemoteError(info.text)


_BY_KIND: dict[FailureKind, type[errors.WindlassError]] = {
    FailureKind.LOST_NODE: errors.NodeLost,
    FailureKind.TIMEOUT: errors.JobTimeout,
    FailureKind.CANCELLED: errors.JobCancelled,
    FailureKind.START_FAILED: errors.EngineError,
    FailureKind.UNKNOWN: errors.EngineError,
    FailureKind.STEP_FAILED: errors.StepFailed,
}


def make_failure(verdict: Verdict) -> errors.WindlassError:
    """Return the error for a verdict without a Python exception."""
    cls = _BY_KIND.get(verdict.kind, errors.RankFailed)
    return cls(verdict.message, hint=verdict.next)


def make_missing_error(header: ResultHeader) -> errors.EngineError:
    """Return the error for a result that a rank wrote and that is missing here."""
    text = header.error.message if header.error else f"the result of rank {header.rank} is missing"
    message, _, hint = text.partition("\n  hint: ")
    return errors.EngineError(message, hint=hint)


class Job:
    """Handle on a running or ended job, from `wl.submit`, or from `wl.attach` in any process."""

    def __init__(self, engine: Engine, ref: JobRef) -> None:
        self._engine = engine
        self.ref = ref

    @property
    def id(self) -> str:
        """ID of the job, without its engine and namespace."""
        return self.ref.job_id

    @property
    def is_here(self) -> bool:
        """True if the nodes are processes of this machine."""
        return "pods" not in self._engine.can

    def __repr__(self) -> str:
        return f"Job({str(self.ref)!r})"

    def status(self) -> JobStatus:
        """Return the current phase, ranks, progress and verdict."""
        return self._engine.status(self.ref)

    def done(self) -> bool:
        """Return whether the job has ended, successfully or not."""
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
        """Yield the lines that ranks printed, in chronological order.

        follow: keep following until the job ends.
        rank: yield lines of this rank only.
        node: yield lines of this node's ranks only.
        attempt: yield lines of this attempt only (default: all attempts).
        since: yield lines since this Unix time, in seconds.
        grep: yield only lines that this regular expression matches.
        """
        query = LogQuery(
            rank=rank, node=node, attempt=attempt, since_s=since, grep=grep, follow=follow
        )
        reader = self.reader(query)
        return self._follow(reader) if follow else reader.read_all()

    def reader(self, query: LogQuery) -> LogReader:
        """Return a reader of the lines of this job, for callers that render them themselves."""
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
        """Wait until the job has ended, and return its status.

        timeout_s: raise WaitTimeout after this many seconds, without ending the job (default: no limit).
        say: function to call every 10 s with the seconds waited so far.
        """
        if not wait_until(self.done, timeout_s=timeout_s, say=say):
            raise WaitTimeout(
                f"{self.id} is still {self.status().phase.value} after {timeout_s:g} s",
                hint=f"it keeps running; `windlass status {self.id}` shows its state",
            )
        return self.status()

    def result(self, rank: int = 0, *, timeout_s: float | None = None) -> Any:
        """Return the value of one rank. Raise the exception that made the job fail, if it failed.

        rank: the rank that returned the value.
        timeout_s: seconds to wait for the job's end (default: no limit).
        """
        values = self.results(timeout_s=timeout_s)
        if not 0 <= rank < len(values):
            raise SpecError(f"rank {rank} does not exist: the job has ranks 0 to {len(values) - 1}")
        return values[rank]

    def results(self, *, timeout_s: float | None = None) -> list[Any]:
        """Return the values of all ranks, in rank order. Raise the exception that made the job fail.

        timeout_s: seconds to wait for the job's end (default: no limit).
        """
        error = self.exception(timeout_s=timeout_s)
        if error is not None:
            raise error
        return [
            self._load(rank, result) for rank, result in enumerate(self._engine.results(self.ref))
        ]

    def exception(self, *, timeout_s: float | None = None) -> BaseException | None:
        """Return the exception that made the job fail, or None if it succeeded.

        This is the exception of the rank that failed first, if that rank raised one.

        timeout_s: seconds to wait for the job's end (default: no limit).
        """
        status = self.wait(timeout_s)
        verdict = status.verdict
        if status.phase is Phase.SUCCEEDED or verdict is None:
            return None
        error: BaseException | None = None
        if verdict.rank is not None and verdict.exception:
            result = self._engine.results(self.ref)[verdict.rank]
            if result is not None and result[0].state == RankState.RAISED:
                error = load_error(*result)
        if error is None:
            error = make_failure(verdict)
        elif hasattr(error, "add_note"):  # Python 3.11
            error.add_note(f"windlass: {verdict.message}; {verdict.next}")
        return error

    def outcomes(self) -> list[ResultHeader | None]:
        """Return how each rank ended, also for a failed job. Nothing is unpickled."""
        results = self._engine.results(self.ref, with_values=False)
        return [result[0] if result else None for result in results]

    def verdict(self) -> Verdict | None:
        """Return which rank or node failed first, why, and what to do next. None if nothing has failed."""
        return self.status().verdict

    def open_port(self, port: int) -> socket.socket:
        """Return a connection to a port of node 0. Raise OSError if nothing listens there.

        port: the number of the port in the job's pods.
        """
        return self._engine.open_port(self.ref, port)

    def cancel(self, *, now: bool = False, why: str = "", interrupt: bool = False) -> None:
        """Cancel the job. Ranks receive SIGTERM, and SIGKILL after the grace period.

        now: send SIGKILL immediately.
        why: the reason that the verdict shows.
        interrupt: send SIGINT first, like Ctrl-C, which raises KeyboardInterrupt in the ranks.
        """
        self._engine.cancel(self.ref, now=now, why=why, interrupt=interrupt)

    def remove(self) -> None:
        """Remove an ended job with its logs and results."""
        self._engine.remove(self.ref)

    def hold(self) -> AbstractContextManager[None]:
        """Return a context manager that holds the job's lease, which keeps the job running."""
        return self._engine.hold(self.ref)

    @staticmethod
    def _load(rank: int, result: tuple[ResultHeader, bytes] | None) -> Any:
        if result is None:  # only functions return values
            return None
        if result[0].state == MISSING:
            raise make_missing_error(result[0])
        if result[0].state != RankState.RETURNED:
            raise RankFailed(f"rank {rank} wrote no result")
        return load_value(*result)


_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Context manager that ends a job on Ctrl-C and SIGTERM. Has no effect outside the main thread."""

    def __init__(self) -> None:
        self.to_show: list[bool] = []  # signals to show: True if the job is to be killed now
        self._job: Job | None = None
        self._num = 0
        self._why = ""
        self._first: int | None = None
        self._before: list[object] = []

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = [signal.signal(number, self._handle) for number in _HANDLED]
        return self

    def __exit__(self, *_error: object) -> None:
        for number, handler in zip(_HANDLED, self._before, strict=False):
            signal.signal(number, handler)  # type: ignore[arg-type]

    @property
    def was_interrupted(self) -> bool:
        return self._num > 0

    def pass_on(self) -> None:
        """Raise the first signal again in this process, after the job has ended."""
        if self._first is not None:
            signal.raise_signal(self._first)

    def watch(self, job: Job) -> None:
        """Set the job to end on a signal. Cancel it immediately if a signal has already arrived."""
        self._job = job
        if self._num:
            job.cancel(now=False, why=self._why, interrupt=self._first == signal.SIGINT)

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        self._num += 1
        is_second = self._num > 1
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        self._why = f"{name} in its client"
        self._first = self._first or number
        if self._job is not None:
            self.to_show.append(is_second)
            self._job.cancel(now=is_second, why=self._why, interrupt=self._first == signal.SIGINT)
        elif is_second:
            raise KeyboardInterrupt

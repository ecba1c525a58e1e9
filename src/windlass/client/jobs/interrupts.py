"""Ctrl-C and SIGTERM while a job is started and followed: they end the job, and only then this process.

From before the job exists, so that none is left behind. Nothing is shown here: a handler may run in the
middle of a write to the terminal. Imports little, since it is needed before anything is started.
"""

from __future__ import annotations

import signal
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType

    from windlass.client.jobs.job import Job

_HANDLED = (signal.SIGINT, signal.SIGTERM)


class Interrupts:
    """Listens while it is entered; only the main thread can."""

    def __init__(self) -> None:
        self.to_show: list[bool] = []  # those yet to be shown: whether each wants the end now
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
        """The job has ended: now the signal means here what it would have meant without one."""
        if self._first is not None:
            signal.raise_signal(self._first)

    def watch(self, job: Job) -> None:
        """The job there is now to end; at once if that was asked for meanwhile."""
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
        elif is_second:  # the starting itself takes too long
            raise KeyboardInterrupt

"""Following an attached job to its end: logs and progress shown, the lease held, Ctrl-C understood.

The first Ctrl-C asks the job to stop and says what is left; the second ends it at once. Anything else that
ends this process leaves the job to its lease.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from windlass.client.job import Job
from windlass.client.view import View
from windlass.waiting import wait_until
from windlass.wire.logs import LogQuery
from windlass.wire.status import JobStatus

_EVERY_S = 0.05


def follow(
    job: Job,
    view: View,
    query: LogQuery | None = None,
    *,
    lease: bool = True,
    cancels: bool = True,
) -> JobStatus:
    """Show a job until it has ended; its last status. Unless it `cancels`, Ctrl-C only ends the showing."""
    with contextlib.ExitStack() as stack:
        stack.callback(view.close)
        if lease:
            stack.enter_context(job.hold())
        interrupts = stack.enter_context(_interrupts(job)) if cancels else []
        reader = job.reader(query or LogQuery(follow=True))
        while True:
            while interrupts:
                view.interrupted(now=interrupts.pop(0))
            status = job.status()
            lines = reader.read_new()
            view.show(status, lines)
            if lines:
                continue
            if status.phase.is_final:
                break
            wait_until(lambda: False, timeout_s=_EVERY_S)
        view.show(status, reader.read_rest())
    return status


@contextlib.contextmanager
def _interrupts(job: Job) -> Iterator[list[bool]]:
    """Ctrl-C and SIGTERM end the job, not this process: it stays to say how it ended.

    Yields the interrupts that are yet to be shown, each with whether it wants the end now: the handler may
    run in the middle of a write to the terminal, so it must not write itself.
    """
    to_show: list[bool] = []
    if threading.current_thread() is not threading.main_thread():
        yield to_show
        return
    num_interrupts = 0

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal num_interrupts
        num_interrupts += 1
        to_show.append(num_interrupts > 1)
        name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
        job.cancel(now=num_interrupts > 1, why=f"{name} in its client")

    handled = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, interrupt) for number in handled]
    try:
        yield to_show
    finally:
        for number, handler in zip(handled, before, strict=True):
            signal.signal(number, handler)

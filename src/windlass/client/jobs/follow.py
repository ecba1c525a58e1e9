"""Following an attached job to its end: logs and progress shown, the lease held, Ctrl-C understood.

The first Ctrl-C asks the job to stop and says what is left; the second ends it at once. Anything else that
ends this process leaves the job to its lease.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from windlass.client.jobs.interrupts import Interrupts
from windlass.client.jobs.job import Job
from windlass.client.jobs.live_view import View
from windlass.waiting import wait_until
from windlass.wire.log_lines import LogQuery
from windlass.wire.status import JobStatus

_EVERY_S = 0.05


def follow(
    job: Job,
    view: View,
    *,
    lease: bool = True,
    interrupts: Interrupts | None = None,
    explain: Callable[[JobStatus], JobStatus] | None = None,
) -> JobStatus:
    """Show a job until it has ended; its last status. Without `interrupts`, Ctrl-C only ends the showing.

    `explain` says more of what it waits for than its status does.
    """
    with contextlib.ExitStack() as stack:
        stack.callback(view.close)
        if lease:
            stack.enter_context(job.hold())
        to_show = interrupts.to_show if interrupts is not None else []
        reader = job.reader(LogQuery(follow=True))
        while True:
            while to_show:
                view.interrupted(now=to_show.pop(0))
            status = job.status()
            lines = reader.read_new()
            view.show(explain(status) if explain else status, lines)
            if lines:
                continue
            if status.phase.is_final:
                break
            wait_until(lambda: False, timeout_s=_EVERY_S)
        view.show(status, reader.read_rest())
    return status

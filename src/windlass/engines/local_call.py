"""A client's link to the lead on this machine, over its Unix socket; holding it open holds the lease."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from windlass.agent.link.blocking_link import BlockingLink, LineBroke, Unanswered
from windlass.engines.socket_folder import dial_lead
from windlass.errors import EngineError
from windlass.waiting import wait_until
from windlass.wire.frames import make_hello
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import LEAD_TO_CLIENT

_CONNECT_TIMEOUT_S = 60.0


def reach_lead(
    folder: JobFolder, *, lease: bool, is_needed: Callable[[], bool]
) -> BlockingLink | None:
    """A link to the lead, which may still be starting; None once it is no longer needed, or has ended."""
    job_id = folder.path.name
    sockets: list[socket.socket] = []

    def is_reached() -> bool:
        with contextlib.suppress(OSError):
            sockets.append(dial_lead(folder, timeout_s=_CONNECT_TIMEOUT_S))
        return bool(sockets) or not is_needed()

    if not wait_until(is_reached, timeout_s=_CONNECT_TIMEOUT_S, every_s=0.01):
        raise EngineError(
            f"the lead of {job_id} did not answer in {_CONNECT_TIMEOUT_S:g} s",
            hint="windlass doctor; the job's agent-0.log says what it is doing",
        )
    hello = make_hello(role="client", job_id=job_id).replaced(lease=lease)
    if not sockets:
        return None
    link = BlockingLink(sockets[0], LEAD_TO_CLIENT)
    try:
        link.greet(hello, timeout_s=_CONNECT_TIMEOUT_S)
    except Unanswered:
        if not lease:
            link.close()
            return None  # a lease holds from the moment when a lead that is slow hears of it
    except LineBroke:
        return None
    return link

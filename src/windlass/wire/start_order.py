"""An agent's first order: which node of which plan it is. The client sends it over a socket pair.

With the lead's order comes the descriptor of the lock it holds for life. While the client keeps its end of
the pair open it is known to be alive: the first lease. Both ends are here so that they cannot drift apart.
"""

from __future__ import annotations

import json
import os
import socket

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.wire.messages.agents import StartNode

_MAX_ORDER_BYTES = 64 << 10


def send_order(control: socket.socket, order: StartNode, fds: list[int]) -> None:
    """Tell an agent which node it is."""
    socket.send_fds(control, [json.dumps(order.to_header()).encode() + b"\n"], fds)


def receive_order(control: socket.socket) -> tuple[StartNode, list[int]] | None:
    """Which node this agent is; None when the client went away before it said."""
    from windlass.wire.messages.agents import StartNode

    text, fds = b"", []
    while not text.endswith(b"\n"):
        data, more, _, _ = socket.recv_fds(control, _MAX_ORDER_BYTES, 4)
        if not data:
            return None
        text += data
        fds += more
    for fd in fds:
        os.set_inheritable(fd, False)
    return StartNode.read(json.loads(text)), fds

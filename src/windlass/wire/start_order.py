"""First order to an agent: its node and its plan. The client sends it over a socket pair.

The lead's order carries the descriptor of the lock that the lead holds until it exits. The open socket pair
is the client's first lease: the client counts as alive until it closes its end. Both ends are in this module
so that they stay compatible.
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
    """Send an agent its node and its plan."""
    socket.send_fds(control, [json.dumps(order.to_header()).encode() + b"\n"], fds)


def receive_order(control: socket.socket) -> tuple[StartNode, list[int]] | None:
    """Return the agent's order and descriptors, or None if the client exited before it sent them."""
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

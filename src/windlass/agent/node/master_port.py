"""The master port where rank 0 opens the store itself: nobody else's until rank 0 binds it.

The lead binds a free port with SO_REUSEADDR and does not listen. While it is held the kernel gives the
port to no process that asks for any free one; but rank 0, whose store asks for it by number and with
SO_REUSEADDR too, gets it. So there is no moment at which a neighbour can take it.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass


@dataclass(slots=True)
class HeldPort:
    """A port that is ours until `release`."""

    number: int
    _socket: socket.socket

    def release(self) -> None:
        self._socket.close()


def hold_port(preferred: int = 0) -> HeldPort:
    """Hold `preferred` when it is free, else any free port."""
    try:
        return _hold(preferred)
    except OSError:
        if preferred == 0:
            raise
        return _hold(0)


def _hold(number: int) -> HeldPort:
    held = _bind(socket.AF_INET6, "::", number) or _bind(socket.AF_INET, "0.0.0.0", number)  # noqa: S104
    if held is None:
        raise OSError(f"port {number} is in use")
    return HeldPort(held.getsockname()[1], held)


def _bind(family: socket.AddressFamily, address: str, number: int) -> socket.socket | None:
    try:
        held = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((address, number))
    except OSError:
        held.close()
        return None
    return held

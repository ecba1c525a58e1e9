"""Where ranks of a node send their reports: a datagram socket beside it. What they mean is for the node."""

from __future__ import annotations

import math
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names, records
from windlass.errors import ProtocolError

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_PLAIN = (bool, int, float, str)


class ReportSocket:
    """Hands each report that is one to `take`."""

    def __init__(
        self, loop: AbstractEventLoop, path: Path, take: Callable[[dict[str, Any]], None]
    ) -> None:
        self.path = path
        self._take = take
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path.unlink(missing_ok=True)  # of a node that was here before
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read)

    def drain(self) -> None:
        """Take what has come: a rank that is gone has said what it said before it went."""
        while self._read():
            pass

    def _read(self) -> bool:
        try:
            data = self._socket.recv(names.MAX_DATAGRAM_BYTES + 1)
        except BlockingIOError:
            return False
        try:
            message = read_message(data)
        except (ProtocolError, KeyError, TypeError, ValueError, OverflowError):
            return True  # what no rank of ours says is nobody's
        self._take(message)
        return True


def read_message(data: bytes) -> dict[str, Any]:
    """What a rank says; anything in the node may have sent it, and the lead and all readers get to see it."""
    message = dict(records.parse(data, "a report"))
    counts = [message["rank"], message.get("step"), message.get("total")]
    if not all(count is None or type(count) is int for count in counts) or counts[0] is None:
        raise ProtocolError("a report's rank or step is no number")
    if not math.isfinite(message["at_s"]):
        raise ProtocolError("a report's time is none")
    metrics = dict(message.get("metrics", {}))
    if not all(value is None or isinstance(value, _PLAIN) for value in metrics.values()):
        raise ProtocolError("a report's metrics are neither numbers nor text")
    if message["type"] == "report":
        message.update(step=counts[1], total=counts[2], metrics=metrics)
    return message

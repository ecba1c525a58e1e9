"""Where ranks of a node send their reports: a datagram socket beside it. What they mean is for the node."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.wire.message import Message
from windlass.wire.messages.ranks import RANK_TO_NODE

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


class ReportSocket:
    """Hands each report that is one to `take`."""

    def __init__(self, loop: AbstractEventLoop, path: Path, take: Callable[[Any], None]) -> None:
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
        except ProtocolError:
            return True  # what no rank of ours says is nobody's
        self._take(message)
        return True


def read_message(data: bytes) -> Message:
    """What a rank says; anything in the node may have sent it, and the lead and all readers get to see it."""
    return RANK_TO_NODE.read(records.parse(data, "a report"))

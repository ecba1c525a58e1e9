"""Between a node and one rank that takes calls: frames over a socket pair, both ends.

The rank's end blocks, since the rank has nothing else to do; the node's end lives in the agent's loop. What
the frames say is `agent.rank.call_rank` and `agent.node.compute_orders`.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from windlass.errors import ProtocolError
from windlass.wire.blocking_link import BlockingLink, ConnectionBroken, Received
from windlass.wire.frames import Buffer, Frame, FrameDecoder
from windlass.wire.message import Message
from windlass.wire.messages.computes import NODE_TO_RANK

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

_READ_BYTES = 64 << 10  # more is taken from the system and given back each time


class RankEnd:
    """The rank's end. It waits as long as it takes."""

    def __init__(self, fd: int) -> None:
        self._link = BlockingLink(socket.socket(fileno=fd), NODE_TO_RANK, io_timeout_s=None)

    def receive(self) -> Received | None:
        """The next message; None when the node has hung up."""
        try:
            return self._link.receive(None)
        except ConnectionBroken:
            return None

    def send(self, message: Message, segments: Sequence[Buffer] = ()) -> None:
        """Say something; a node that is gone hears nothing, and will end this rank."""
        with contextlib.suppress(ConnectionBroken):
            self._link.send(message, segments)

    def wait_for_hangup(self, limit_s: float) -> None:
        """Until the node has hung up, or the limit: its peers may still be meeting this rank."""
        try:
            while self._link.receive(limit_s) is not None:
                pass
        except BaseException:  # noqa: BLE001, S110 - that, or what a signal handler of the user's raised
            pass


class NodeEnd:
    """The node's end. `send` never blocks."""

    def __init__(self, loop: AbstractEventLoop, on_frame: Callable[[Frame], None]) -> None:
        self._loop = loop
        self._on_frame = on_frame
        self._socket, self._theirs = socket.socketpair()
        self._socket.setblocking(False)
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self._is_open = True
        self.was_reset = False  # the rank ended with something unread
        loop.add_reader(self._socket.fileno(), self.read)

    @property
    def theirs(self) -> int:
        """The rank's end, until it is given away."""
        return self._theirs.fileno()

    def give_away(self) -> None:
        """The rank has its end: this copy is closed."""
        self._theirs.close()

    def send(self, data: bytes) -> bool:
        """A rendered frame, or several; False when the rank is gone, and will never read it."""
        if not self._is_open:
            return False
        if self._unsent:
            self._unsent += data
            return True
        try:
            num = self._socket.send(data)
        except BlockingIOError:
            num = 0
        except OSError:
            return False  # its end is an event of its own
        if num < len(data):
            self._unsent += memoryview(data)[num:]
            self._loop.add_writer(self._socket.fileno(), self._write)
        return True

    def _write(self) -> None:
        try:
            num = self._socket.send(self._unsent)
        except BlockingIOError:
            return
        except OSError:
            num = len(self._unsent)
        del self._unsent[:num]
        if not self._unsent:
            self._loop.remove_writer(self._socket.fileno())

    def read(self) -> bool:
        """Take what has come; whether there was something."""
        if not self._is_open:
            return False
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            self.was_reset = isinstance(error, ConnectionResetError)
            data = b""
        if not data:
            self.close()
            return False
        try:
            for frame in self._decoder.feed(data):
                self._on_frame(frame)
        except ProtocolError:  # what a rank's own code wrote there
            self.close()
        return True

    def close(self) -> None:
        """Hang up: a rank that waits for calls ends."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._theirs.close()

"""Channel between a node and one rank that takes calls: frames over a socket pair.

The rank's end blocks, because the rank has nothing else to do. The node's end runs in the agent's event loop.
`agent.rank.call_rank` and `agent.node.compute_orders` interpret the frames.
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

_READ_BYTES = 64 << 10  # larger read buffers are allocated and freed for every read


class RankEnd:
    """The rank's end of the channel. Receiving has no timeout."""

    def __init__(self, fd: int) -> None:
        self._link = BlockingLink(socket.socket(fileno=fd), NODE_TO_RANK, io_timeout_s=None)

    def receive(self) -> Received | None:
        """Return the next message, or None if the node has hung up."""
        try:
            return self._link.receive(None)
        except ConnectionBroken:
            return None

    def send(self, message: Message, segments: Sequence[Buffer] = ()) -> None:
        """Send a message. Ignore a lost node, because this rank is then ended as well."""
        with contextlib.suppress(ConnectionBroken):
            self._link.send(message, segments)

    def wait_for_hangup(self, limit_s: float) -> None:
        """Wait until the node hangs up, or for `limit_s`. Other ranks may still be connecting to this one."""
        try:
            while self._link.receive(limit_s) is not None:
                pass
        except BaseException:  # noqa: BLE001, S110 - a hang-up, or an exception of the user's signal handler
            pass


class NodeEnd:
    """Node's end of the channel. `send` never blocks."""

    def __init__(self, loop: AbstractEventLoop, on_frame: Callable[[Frame], None]) -> None:
        self._loop = loop
        self._on_frame = on_frame
        self._socket, self._rank_socket = socket.socketpair()
        self._socket.setblocking(False)
        self._decoder = FrameDecoder()
        self._unsent = bytearray()
        self._is_open = True
        self.was_reset = False  # the rank exited with unread data
        loop.add_reader(self._socket.fileno(), self.read)

    @property
    def rank_fd(self) -> int:
        """Descriptor of the rank's end, until `close_rank_end`."""
        return self._rank_socket.fileno()

    def close_rank_end(self) -> None:
        """Close the node's copy of the rank's end, after the rank has inherited it."""
        self._rank_socket.close()

    def send(self, data: bytes) -> bool:
        """Send one or more rendered frames. Return False if the rank is gone and will never read them."""
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
            return False  # the rank's exit is reported separately
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
        """Read pending data. Return whether there was any."""
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
        except ProtocolError:  # user code in the rank wrote to the descriptor
            self.close()
        return True

    def close(self) -> None:
        """Hang up. A rank that waits for calls then exits."""
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._socket.fileno())
            self._loop.remove_writer(self._socket.fileno())
            self._socket.close()
            self._rank_socket.close()

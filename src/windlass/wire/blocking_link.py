"""Blocking connection that exchanges frames over a socket, without an event loop.

Clients use it for everything they exchange with a lead: calls, orders to jobs, copies of job folders.
Ranks use it to exchange messages with their node. It does little per message, because an empty call
spends most of its time here. It checks that each message is allowed, but does not interpret it.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from windlass.wire.frames import Buffer, FrameDecoder, refusal, render_pieces
from windlass.wire.message import Direction, Message
from windlass.wire.messages.link import Heartbeat, Hello, Refused, Welcome

_READ_BYTES = 64 << 10  # malloc would map and unmap a larger buffer on every read
_PIECE_BYTES = 1 << 20
_IO_TIMEOUT_S = 60.0


class Stream(Protocol):
    """Socket, or another object with the same methods."""

    def recv(self, size: int, /) -> bytes: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def sendall(self, data: Buffer, /) -> None: ...
    def settimeout(self, timeout_s: float | None, /) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Received(NamedTuple):
    """A received message and its body."""

    message: Message
    body: bytes


class ConnectionBroken(OSError):
    """The other side closed the connection, or is no longer reachable."""


class Unanswered(ConnectionBroken):
    """The other side did not answer in time. It may still do so."""


class BlockingLink:
    """One connection. `direction` lists the messages that the other side may send.

    `io_timeout_s` limits the sending of each piece. It is also the socket timeout of a `receive` without
    a time limit, because changing the socket timeout would cost a system call.
    """

    def __init__(
        self, stream: Stream, direction: Direction, *, io_timeout_s: float | None = _IO_TIMEOUT_S
    ) -> None:
        self._stream = stream
        self._direction = direction
        self._io_timeout_s = io_timeout_s
        self._timeout_s: float | None = -1.0  # the stream's timeout, as last set
        self._decoder = FrameDecoder()
        self.last_received_s = time.monotonic()

    def greet(self, hello: Hello, *, timeout_s: float) -> None:
        """Send the hello to a lead and wait for its welcome.

        On any error except Unanswered, close the link.
        """
        try:
            self.send(hello)
            received = self.receive(timeout_s)
            if received is None:
                raise Unanswered(f"the lead did not answer in {timeout_s:g} s")
            if not isinstance(received.message, Welcome):
                raise ConnectionBroken("the lead did not answer the hello with a welcome")
        except Unanswered:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stream.close()

    def fileno(self) -> int:
        return self._stream.fileno()

    def has_data(self) -> bool:
        """Return whether a read would not block. The end of the stream counts as data."""
        pending = getattr(
            self._stream, "pending", int
        )  # TLS may have buffered data that select cannot see
        return bool(pending() or select.select([self._stream], [], [], 0)[0])

    def send(self, message: Message, segments: Sequence[Buffer] = ()) -> None:
        """Send a message. Return when all of it has been written."""
        try:
            self._set_timeout(self._io_timeout_s)
            for piece in render_pieces(message, segments):
                if len(piece) <= _PIECE_BYTES:
                    self._stream.sendall(piece)
                    continue
                view = memoryview(piece)
                for start in range(0, len(view), _PIECE_BYTES):  # the timeout is per piece
                    self._stream.sendall(view[start : start + _PIECE_BYTES])
        except OSError as error:
            raise ConnectionBroken(str(error)) from error

    def receive(self, timeout_s: float | None) -> Received | None:
        """Return the next message that is not a heartbeat, or None if none arrives in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while (frame := self._decoder.take()) is not None:
                header, body = frame
                if header.get("type") == Refused.kind and (refused := refusal(header)):
                    raise refused
                message = self._direction.read(header)
                if type(message) is not Heartbeat:
                    return Received(message, body)
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not self._read(left_s) and left_s is not None:
                return None

    def ask(self, question: Message, *, timeout_s: float = 30.0) -> Received:
        """Send one question and return its answer."""
        self.send(question)
        received = self.receive(timeout_s)
        if received is None:
            raise ConnectionBroken(f"no answer in {timeout_s:g} s")
        return received

    def _set_timeout(self, timeout_s: float | None) -> None:
        if timeout_s != self._timeout_s:
            self._stream.settimeout(timeout_s)
            self._timeout_s = timeout_s

    def _read(self, timeout_s: float | None) -> bool:
        """Read from the stream. Return whether anything arrived in time."""
        try:
            self._set_timeout(self._io_timeout_s if timeout_s is None else timeout_s)
            num_bytes = self._read_some()
        except OSError as error:
            if _is_timeout(error):
                return False
            raise ConnectionBroken(str(error)) from error
        if not num_bytes:
            raise ConnectionBroken("the lead closed the connection")
        self.last_received_s = time.monotonic()
        return True

    def _read_some(self) -> int:
        place = self._decoder.place()
        if place is None:
            data = self._stream.recv(_READ_BYTES)
            self._decoder.feed(data)
            return len(data)
        with place:
            num_bytes = self._stream.recv_into(place)
        self._decoder.placed(num_bytes)
        return num_bytes


def _is_timeout(error: OSError) -> bool:
    # compared by name, because ssl is slow to import and ranks do not need it otherwise
    is_tls = type(error).__name__ == "SSLWantReadError"
    return is_tls or isinstance(error, (TimeoutError, BlockingIOError))

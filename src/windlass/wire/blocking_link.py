"""A link for those who wait: frames over a socket, or over as much of one as is needed; no event loop.

A client's one way to talk to a lead (calls, orders to jobs, copies of job folders), and a rank's to its node.
As thin as can be: an empty call spends most of its time here. Knows what may be said, not what it means.
"""

from __future__ import annotations

import select
import time
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from windlass.wire.frames import Buffer, FrameDecoder, refusal, render_pieces
from windlass.wire.message import Direction, Message
from windlass.wire.messages.link import Heartbeat, Hello, Refused, Welcome

_READ_BYTES = 64 << 10  # more is taken from the system and given back each time
_PIECE_BYTES = 1 << 20
_PATIENCE_S = 60.0


class Stream(Protocol):
    """What can be talked over, in turn: a socket, or as much of one as is needed."""

    def recv(self, size: int, /) -> bytes: ...
    def recv_into(self, buffer: memoryview, /) -> int: ...
    def sendall(self, data: Buffer, /) -> None: ...
    def settimeout(self, timeout_s: float | None, /) -> None: ...
    def fileno(self) -> int: ...
    def close(self) -> None: ...


class Received(NamedTuple):
    """What the other side said."""

    message: Message
    body: bytes


class ConnectionBroken(OSError):
    """The other side hung up, or cannot be reached any more."""


class Unanswered(ConnectionBroken):
    """The other side has said nothing in time; it may yet."""


class BlockingLink:
    """One connection; `direction` is what the other side may say.

    `patience_s` is for each piece that is sent. Whoever receives without a limit looks up that often, too:
    a change of the limit would be a call of the system.
    """

    def __init__(
        self, stream: Stream, direction: Direction, *, patience_s: float | None = _PATIENCE_S
    ) -> None:
        self._stream = stream
        self._direction = direction
        self._patience_s = patience_s
        self._timeout_s: float | None = -1.0  # of the stream, as it was last set
        self._decoder = FrameDecoder()
        self.heard_s = time.monotonic()  # when anything came last

    def greet(self, hello: Hello, *, timeout_s: float) -> None:
        """Introduce this side to a lead, and hear that it is welcome.

        A link that is not is closed, but for one that is Unanswered.
        """
        try:
            self.send(hello)
            received = self.receive(timeout_s)
            if received is None:
                raise Unanswered(f"the lead said nothing in {timeout_s:g} s")
            if not isinstance(received.message, Welcome):
                raise ConnectionBroken("the lead said no welcome")
        except Unanswered:
            raise
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._stream.close()

    def fileno(self) -> int:
        return self._stream.fileno()

    def has_come(self) -> bool:
        """Whether there is something to read, be it the end."""
        pending = getattr(self._stream, "pending", int)  # TLS may hold what no socket will announce
        return bool(pending() or select.select([self._stream], [], [], 0)[0])

    def send(self, message: Message, segments: Sequence[Buffer] = ()) -> None:
        """Say something, whole."""
        try:
            self._set_timeout(self._patience_s)
            for piece in render_pieces(message, segments):
                if len(piece) <= _PIECE_BYTES:
                    self._stream.sendall(piece)
                    continue
                view = memoryview(piece)
                for start in range(0, len(view), _PIECE_BYTES):  # each has the time
                    self._stream.sendall(view[start : start + _PIECE_BYTES])
        except OSError as error:
            raise ConnectionBroken(str(error)) from error

    def receive(self, timeout_s: float | None) -> Received | None:
        """The next message but heartbeats; None when there is none in time."""
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
        """One question, one answer."""
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
        """Whether something came in time."""
        try:
            self._set_timeout(self._patience_s if timeout_s is None else timeout_s)
            num_bytes = self._read_some()
        except OSError as error:
            if _is_no_news(error):
                return False
            raise ConnectionBroken(str(error)) from error
        if not num_bytes:
            raise ConnectionBroken("the lead hung up")
        self.heard_s = time.monotonic()
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


def _is_no_news(error: OSError) -> bool:
    # by its name: a rank has no other need of ssl, which takes long to import
    is_tls = type(error).__name__ == "SSLWantReadError"
    return is_tls or isinstance(error, (TimeoutError, BlockingIOError))

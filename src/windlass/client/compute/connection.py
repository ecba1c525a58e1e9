"""A client's connection to the lead of a compute: frames out, frames in, one conversation at a time.

Blocking, and as thin as can be: an empty call spends most of its time here. What is said over it is
`client.compute.client_call`.
"""

from __future__ import annotations

import contextlib
import select
import ssl
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

from windlass import names
from windlass.engines.protocol import ComputeEngine, JobRef, Stream
from windlass.errors import ProtocolError
from windlass.wire.frames import Frame, FrameDecoder, make_hello, render_head
from windlass.wire.message import Message
from windlass.wire.messages.calls import COMPUTE_LEAD_TO_CLIENT, AskInfo, ComputeInfo
from windlass.wire.messages.computes import PayloadPart
from windlass.wire.messages.link import Heartbeat, Refused, Welcome
from windlass.wire.payloads import Segment

_READ_BYTES = 64 << 10  # more is taken from the system and given back each time
_HELLO_S = 10.0
_PING_S = 5.0
_FRESH_S = 1.0  # a connection that was used so lately is taken to be alive
_SMALL_BYTES = 64 << 10
_PIECE_BYTES = 1 << 20
_PATIENCE_S = 60.0  # to send; to receive, and then again: a change is a call of the system


M = TypeVar("M", bound=Message)


class Received(NamedTuple):
    """What the lead said."""

    message: Message
    body: bytes


class LineBroke(OSError):
    """The lead hung up, or cannot be reached any more."""


class Connection:
    """One connection that has been welcomed."""

    def __init__(self, connection: Stream, job_id: str) -> None:
        self._socket = connection
        self._timeout_s = -1.0  # of the socket, as it was last set
        self._decoder = FrameDecoder()
        self._come: deque[Frame] = deque()
        self.used_s = time.monotonic()
        self.lead = ""  # which lead is at its end, once it was asked
        self.num_calls = 0  # that this lead had taken by then, at least
        self.profiles: set[str] = set()  # of calls, that were said over it
        try:
            self.send(make_hello(role="client", job_id=job_id))
            received = self.receive(_HELLO_S)
        except BaseException:
            connection.close()
            raise
        if received is None or not isinstance(received.message, Welcome):
            connection.close()
            raise LineBroke("the lead said no welcome")

    def close(self) -> None:
        self._socket.close()

    def send(self, message: Message, segments: Sequence[Segment] = ()) -> None:
        """Say something, whole."""
        size = sum(len(segment) for segment in segments)
        head = render_head(message, size)
        try:
            self._set_timeout(_PATIENCE_S)
            if size <= _SMALL_BYTES:
                self._socket.sendall(b"".join((head, *segments)))
                return
            self._socket.sendall(head)
            for segment in segments:
                view = memoryview(segment)
                for start in range(0, len(view), _PIECE_BYTES):  # each has the time
                    self._socket.sendall(view[start : start + _PIECE_BYTES])  # type: ignore[arg-type]
        except OSError as error:
            raise LineBroke(str(error)) from error

    def send_parts(self, key: str, segments: Sequence[Segment]) -> None:
        """A large payload, in parts."""
        for segment in segments:
            view = memoryview(segment)
            for start in range(0, len(view), names.PART_BYTES):
                part = view[start : start + names.PART_BYTES]
                self.send(PayloadPart(payload=key), [part])

    def receive(self, timeout_s: float | None) -> Received | None:
        """The next message but heartbeats; None when there is none in time."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            while self._come:
                frame = self._come.popleft()
                if frame.type != Heartbeat.kind:
                    return self._check(frame)
            left_s = None if deadline is None else deadline - time.monotonic()
            if left_s is not None and left_s <= 0:
                return None
            self._come.extend(self._read(left_s))

    def _set_timeout(self, timeout_s: float) -> None:
        if timeout_s != self._timeout_s:
            self._socket.settimeout(timeout_s)
            self._timeout_s = timeout_s

    @staticmethod
    def _check(frame: Frame) -> Received:
        message = COMPUTE_LEAD_TO_CLIENT.read(frame.header)
        if isinstance(message, Refused):
            raise ProtocolError(message.why, hint=message.hint)
        return Received(message, frame.body)

    def _read(self, timeout_s: float | None) -> Iterator[Frame]:
        try:
            self._set_timeout(_PATIENCE_S if timeout_s is None else timeout_s)
            data = self._socket.recv(_READ_BYTES)
        except (TimeoutError, ssl.SSLWantReadError, BlockingIOError):
            return iter(())
        except OSError as error:
            raise LineBroke(str(error)) from error
        if not data:
            raise LineBroke("the lead hung up")
        return self._decoder.feed(data)

    def ask(self, question: Message, *, timeout_s: float = 30.0) -> Received:
        """One question, one answer."""
        self.send(question)
        received = self.receive(timeout_s)
        if received is None:
            raise LineBroke(f"no answer in {timeout_s:g} s")
        return received

    def is_alive(self) -> bool:
        """Whether somebody is still at the other end; one that was used just now is not asked."""
        try:
            if time.monotonic() - self.used_s < _FRESH_S:
                return not self._has_come() or self._drain()
            self._drain()
            info = self.ask(AskInfo(), timeout_s=_PING_S).message
            if isinstance(info, ComputeInfo):
                self.num_calls = info.num_calls
            return isinstance(info, ComputeInfo)
        except (OSError, ProtocolError):
            return False

    def _has_come(self) -> bool:
        if getattr(self._socket, "has_kept", False):  # what no socket will announce
            return True
        return bool(select.select([self._socket], [], [], 0)[0])

    def _drain(self) -> bool:
        """Take what has come while nobody listened: heartbeats, or the end."""
        while self._has_come():
            self._come.extend(self._read(0))
        self._come.clear()
        return True


def expect(kind: type[M], received: Received) -> M:
    """What was said, if it is what was asked for."""
    if not isinstance(received.message, kind):
        raise ProtocolError(
            f"the lead answered {received.message.kind!r} where {kind.kind!r} was due"
        )
    return received.message


def ask_info(connection: Connection) -> ComputeInfo:
    """What the lead says of its compute, and of itself."""
    info = expect(ComputeInfo, connection.ask(AskInfo()))
    connection.lead, connection.num_calls = info.born, info.num_calls
    return info


def ask_at(engine: ComputeEngine, ref: JobRef) -> ComputeInfo:
    """The same of a compute that is not talked to otherwise."""
    with contextlib.closing(Connection(engine.dial(ref), ref.job_id)) as connection:
        return ask_info(connection)

"""Frames of the protocol: encoding, decoding, and the check of the first frame.

    | header length, 4 bytes | body length, 4 bytes | header, JSON | body |

The first frame is a hello with the protocol version and the job ID. The receiver refuses a peer with
another version or job, and closes the connection. This module performs no I/O. `agent.link.agent_link`
sends and receives frames in an event loop, `wire.blocking_link` with blocking calls, and
`agent.link.rank_channel` between a node and its ranks.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.wire.identity import NODE, ROLES
from windlass.wire.message import Message
from windlass.wire.messages.link import Hello

_LENGTHS = struct.Struct(">II")
_SMALL_BYTES = 64 << 10  # a body up to this size is copied, to send it together with its header
_ROOM_BYTES = (
    8 << 20
)  # most memory to allocate for an announced body before as many bytes of it have arrived

Buffer = bytes | bytearray | memoryview
Header = Mapping[str, Any]


_decode = json.JSONDecoder().decode


class Frame(NamedTuple):
    """One message: its header, and its body. The receiver may change the body."""

    header: Header
    body: bytes = b""

    @property
    def type(self) -> str:
        return str(self.header.get("type", ""))


def render_frame(message: Message | Header, body: bytes = b"") -> bytes:
    """Return the bytes of one frame."""
    return _render_head(message, len(body)) + body


def render_pieces(message: Message | Header, segments: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return one frame as pieces to send one after another. A large body is not copied."""
    size = sum(map(len, segments))
    head = _render_head(message, size)
    if size <= _SMALL_BYTES:
        return (b"".join((head, *segments)),)
    return (head, *segments)


def _render_head(message: Message | Header, num_body_bytes: int) -> bytes:
    header = message.to_header() if isinstance(message, Message) else message
    text = records.encode(header).encode()
    return _LENGTHS.pack(len(text), num_body_bytes) + text


@dataclass(slots=True)
class FrameDecoder:
    """Decoder that splits a stream of bytes into frames.

    Pass received bytes to `feed`, or read a large body directly into `place`. A frame is parsed only when
    it is taken. A frame over the limits is refused before its body is buffered. An announced body
    that never arrives takes little memory.
    """

    max_header_bytes: int = names.MAX_HEADER_BYTES
    max_body_bytes: int = names.MAX_BODY_BYTES
    _unread: bytearray = field(default_factory=bytearray)  # not parsed yet
    _header: Header | None = None  # header of the frame being received
    _body: bytearray = field(default_factory=bytearray)
    _missing: int = 0  # bytes of `_body` that have not arrived yet
    _room: int = 0  # unfilled bytes at the end of `_body`

    @property
    def is_between_frames(self) -> bool:
        """True if only whole frames have been received."""
        return self._header is None and not self._unread

    @property
    def num_unread(self) -> int:
        """Number of received bytes that are not parsed yet."""
        return len(self._unread)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes and return an iterator over the complete frames. They may also be taken later."""
        while self._missing and data and (place := self.place()) is not None:
            with place:
                num_bytes = min(len(place), len(data))
                place[:num_bytes] = data[:num_bytes]
            self.placed(num_bytes)
            data = data[num_bytes:]
        self._unread += data
        return iter(self.take, None)

    def place(self) -> memoryview | None:
        """Return a buffer for the rest of a large body, or None if the caller must use `feed`.

        Report the number of bytes read with `placed`. Release the view before the frame is taken, so that
        the owner of the frame can change the body's length.
        """
        if not self._missing:
            return None
        if not self._room:
            received = self._body
            is_trusted = len(received) >= _ROOM_BYTES
            self._room = self._missing if is_trusted else min(self._missing, _ROOM_BYTES)
            self._body = bytearray(len(received) + self._room)  # growing it would copy more often
            self._body[: len(received)] = received
        return memoryview(self._body)[-self._room :]

    def placed(self, num_bytes: int) -> None:
        """Record that this many bytes of the body were read into `place`."""
        self._room -= num_bytes
        self._missing -= num_bytes

    def take(self) -> Frame | None:
        """Return the next frame, or None if it is not complete."""
        if self._header is None and self._unread:
            self._begin()
        if self._header is None or self._missing:
            return None
        # A bytearray keeps arrays in the body writable. Unlike bytes, it is not hashable.
        frame = Frame(self._header, self._body)  # type: ignore[arg-type]
        self._header, self._body = None, bytearray()
        return frame

    def _begin(self) -> None:
        """Parse the next frame's header if it is complete, and start to receive its body."""
        unread = self._unread
        if len(unread) < _LENGTHS.size:
            return
        header_length, body_length = _LENGTHS.unpack_from(unread)
        if header_length > self.max_header_bytes or body_length > self.max_body_bytes:
            raise ProtocolError(
                f"a frame of {header_length} + {body_length} bytes is over the limit",
                hint="the peer does not speak Windlass's protocol",
            )
        start = _LENGTHS.size + header_length
        if len(unread) < start:
            return
        self._header = _read_header(unread[_LENGTHS.size : start])
        self._body = unread[start : start + body_length]
        self._missing = body_length - len(self._body)
        del unread[: start + body_length]


def _read_header(text: bytearray) -> Header:
    """Return the decoded header of a frame."""
    try:
        header = _decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame's header is not JSON") from error
    if type(header) is not dict:
        raise ProtocolError("a frame's header is not an object")
    return header


def make_hello(*, role: str, job_id: str, node: int | None = None) -> Hello:
    """Return the first frame: the sender's identity and its protocol version."""
    return Hello(version=names.PROTOCOL_VERSION, role=role, job_id=job_id, node=node)


def check_hello(header: Header, *, job_id: str) -> Hello:
    """Return the hello. Raise ProtocolError for another version, another job or an unknown role."""
    if header.get("type") != "hello":
        raise ProtocolError(f"expected hello, got {header.get('type')!r:.40}")
    if header.get("version") != names.PROTOCOL_VERSION:
        raise ProtocolError(
            f"the peer speaks version {header.get('version')!r:.20}, "
            f"this agent version {names.PROTOCOL_VERSION}",
            hint="use the same version of Windlass on both sides",
        )
    if header.get("job_id") != job_id:
        raise ProtocolError(f"the peer belongs to job {header.get('job_id')!r:.60}, not {job_id}")
    role, node = header.get("role"), header.get("node")
    if role not in ROLES:
        raise ProtocolError(f"the peer's role is {role!r:.40}, not one of {', '.join(ROLES)}")
    has_index = type(node) is int and node >= 0
    if role == NODE and not has_index and not isinstance(header.get("asks_index"), str):
        raise ProtocolError(f"the node's index is {node!r:.40}, not an integer of at least 0")
    return Hello.read(header)


def refusal(header: Header) -> ProtocolError | None:
    """Return the error that a refused peer should raise, or None if the frame is not a refusal."""
    if header.get("type") != "refused":
        return None
    return ProtocolError(str(header.get("why", "refused")), hint=str(header.get("hint", "")))

"""A connection without its socket: bytes become frames, messages bytes, and a peer introduces itself.

    | header length, 4 bytes | body length, 4 bytes | header, JSON | body |

The first frame is a hello with the protocol's version and the job's id; a peer of another version or another
job is told so and hung up on. Pure. Its shells do the I/O: `agent.link.agent_link` in an event loop,
`wire.blocking_link` where one waits; `agent.link.rank_channel` is between a node and its ranks.
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
_SMALL_BYTES = 64 << 10  # of a body: copied, since it is sent in one go with what stands before it
_ROOM_BYTES = 8 << 20  # for what is announced; a peer that has sent so much means it

Buffer = bytes | bytearray | memoryview
Header = Mapping[str, Any]


_decode = json.JSONDecoder().decode


class Frame(NamedTuple):
    """One message: what it says, and the bytes it carries, which are the receiver's own."""

    header: Header
    body: bytes = b""

    @property
    def type(self) -> str:
        return str(self.header.get("type", ""))


def render_frame(said: Message | Header, body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return _render_head(said, len(body)) + body


def render_pieces(said: Message | Header, segments: Sequence[Buffer]) -> Sequence[Buffer]:
    """The same, to be sent one after another: a large body is not copied."""
    size = sum(map(len, segments))
    head = _render_head(said, size)
    if size <= _SMALL_BYTES:
        return (b"".join((head, *segments)),)
    return (head, *segments)


def _render_head(said: Message | Header, num_body_bytes: int) -> bytes:
    text = records.encode(said.to_header() if isinstance(said, Message) else said).encode()
    return _LENGTHS.pack(len(text), num_body_bytes) + text


@dataclass(slots=True)
class FrameDecoder:
    """Cuts a stream of bytes into frames; refuses what is too long before it is kept.

    `feed` it what has come, or read a body that is under way into its `place`. No frame is looked at before
    it is taken. What is announced and does not come takes little memory.
    """

    max_header_bytes: int = names.MAX_HEADER_BYTES
    max_body_bytes: int = names.MAX_BODY_BYTES
    _unread: bytearray = field(default_factory=bytearray)  # not looked at yet
    _header: Header | None = None  # of the frame under way
    _body: bytearray = field(default_factory=bytearray)
    _missing: int = 0  # bytes of that body still to come
    _room: int = 0  # at the end of it, for the next of them

    @property
    def is_between_frames(self) -> bool:
        """Whether all that came was whole frames."""
        return self._header is None and not self._unread

    @property
    def num_unread(self) -> int:
        """Bytes that came and were not looked at yet."""
        return len(self._unread)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes; the frames that are now complete, to be taken now or later."""
        while self._missing and data and (place := self.place()) is not None:
            with place:
                num_bytes = min(len(place), len(data))
                place[:num_bytes] = data[:num_bytes]
            self.placed(num_bytes)
            data = data[num_bytes:]
        self._unread += data
        return iter(self.take, None)

    def place(self) -> memoryview | None:
        """Where more of a large body is to be read to; `placed` is told how much. None: feed whatever comes.

        The view must be released before the frame is taken: its owner may want to change its length.
        """
        if not self._missing:
            return None
        if not self._room:
            come = self._body
            is_earnest = len(come) >= _ROOM_BYTES
            self._room = self._missing if is_earnest else min(self._missing, _ROOM_BYTES)
            self._body = bytearray(len(come) + self._room)  # one that grows is moved more often
            self._body[: len(come)] = come
        return memoryview(self._body)[-self._room :]

    def placed(self, num_bytes: int) -> None:
        """So much of the body was read in place."""
        self._room -= num_bytes
        self._missing -= num_bytes

    def take(self) -> Frame | None:
        """The next frame, if it is complete."""
        if self._header is None and self._unread:
            self._begin()
        if self._header is None or self._missing:
            return None
        # a bytearray, so that arrays in it can be written to: it does all that bytes do but be a key
        frame = Frame(self._header, self._body)  # type: ignore[arg-type]
        self._header, self._body = None, bytearray()
        return frame

    def _begin(self) -> None:
        """Read the next frame's header, if it is complete; its body is under way then."""
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
    """What a frame says."""
    try:
        header = _decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame's header is not JSON") from error
    if type(header) is not dict:
        raise ProtocolError("a frame's header is not an object")
    return header


def make_hello(*, role: str, job_id: str, node: int | None = None) -> Hello:
    """The first frame: who is there, and which protocol is spoken."""
    return Hello(version=names.PROTOCOL_VERSION, role=role, job_id=job_id, node=node)


def check_hello(header: Header, *, job_id: str) -> Hello:
    """Refuse a peer that speaks another version, belongs to another job or is nobody we know."""
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
        raise ProtocolError(f"a node calls itself number {node!r:.40}")
    return Hello.read(header)


def refusal(header: Header) -> ProtocolError | None:
    """The error a refused peer should raise."""
    if header.get("type") != "refused":
        return None
    return ProtocolError(str(header.get("why", "refused")), hint=str(header.get("hint", "")))

"""Frames on a link: a JSON header and a body of bytes, both bounded.

    | header length, 4 bytes | body length, 4 bytes | header, JSON | body |

The first frame on a link is a hello with the protocol's version and the job's id; a peer of another version
or another job is told so and hung up on. Pure: reading from sockets is `agent.link.agent_link`'s business.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.wire.identity import NODE, ROLES
from windlass.wire.message import Message
from windlass.wire.messages.link import Hello

LENGTHS = struct.Struct(">II")
_SMALL_BYTES = 4096

Header = Mapping[str, Any]


def _to_plain(value: Any) -> Any:
    """Records and messages inside a header."""
    return vars(value) if isinstance(value, Message) else records.to_json(value)


# made once: the module's functions make an encoder for every frame
_encode = json.JSONEncoder(separators=(",", ":"), default=_to_plain).encode
_decode = json.JSONDecoder().decode


class Frame(NamedTuple):
    """One message: what it says, and the bytes it carries."""

    header: Header
    body: bytes = b""

    @property
    def type(self) -> str:
        return str(self.header.get("type", ""))


def render_frame(said: Message | Header, body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    return render_head(said, len(body)) + body


def render_head(said: Message | Header, num_body_bytes: int) -> bytes:
    """The bytes of one frame up to its body, for a sender of a large body that does not copy it."""
    text = _encode(said.to_header() if isinstance(said, Message) else said).encode()
    return LENGTHS.pack(len(text), num_body_bytes) + text


@dataclass(slots=True)
class FrameDecoder:
    """Cuts a stream of bytes into frames; refuses what is too long before it is buffered.

    A body is kept in the pieces it came in and put together once: so it is copied once, and takes no
    more memory than what has really arrived of it. A caller that stops reading `feed` halfway loses nothing.
    """

    max_header_bytes: int = names.MAX_HEADER_BYTES
    max_body_bytes: int = names.MAX_BODY_BYTES
    _head: bytearray = field(default_factory=bytearray)  # lengths and header of the frame begun
    _header: Header | None = None  # once it is complete
    _pieces: list[bytearray | memoryview] = field(default_factory=list)
    _missing: int = 0  # bytes of the body still to come
    _rest: memoryview = field(default_factory=lambda: memoryview(b""))  # not looked at yet

    @property
    def is_between_frames(self) -> bool:
        """Whether all that came was whole frames."""
        return self._header is None and not self._head and not self._rest

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes, yield each frame that is now complete."""
        self._rest = memoryview(bytes(self._rest) + data if self._rest else data)
        while self._rest and (frame := self._take()) is not None:
            yield frame

    def _take_whole(self) -> Frame | None:
        """A frame that has come as a whole, as most do."""
        rest = self._rest
        if len(rest) < LENGTHS.size:
            return None
        header_length, body_length = LENGTHS.unpack_from(rest)
        self._check_lengths(header_length, body_length)
        start = LENGTHS.size + header_length
        end = start + body_length
        if end > len(rest):
            return None
        header = read_header(bytes(rest[LENGTHS.size : start]))
        self._rest = rest[end:]
        return Frame(header, bytes(rest[start:end]))

    def _take(self) -> Frame | None:
        if self._header is None and not self._head and (whole := self._take_whole()):
            return whole
        if self._header is None:
            self._header = self._take_header()
            if self._header is None:
                return None
        if self._missing:
            self._keep(self._cut(self._missing))
            if self._missing:
                return None
        frame = Frame(self._header, b"".join(self._pieces))
        self._header = None
        self._pieces.clear()
        self._head.clear()
        return frame

    def _take_header(self) -> Header | None:
        if not self._fill(LENGTHS.size):
            return None
        header_length, body_length = LENGTHS.unpack_from(self._head)
        self._check_lengths(header_length, body_length)
        if not self._fill(LENGTHS.size + header_length):
            return None
        header = read_header(bytes(self._head[LENGTHS.size :]))
        self._missing = body_length
        return header

    def _check_lengths(self, header_length: int, body_length: int) -> None:
        if header_length > self.max_header_bytes or body_length > self.max_body_bytes:
            raise ProtocolError(
                f"a frame of {header_length} + {body_length} bytes is over the limit",
                hint="the peer does not speak Windlass's protocol",
            )

    def _fill(self, length: int) -> bool:
        """Whether the head is so long by now."""
        if len(self._head) < length:
            self._head += self._cut(length - len(self._head))
        return len(self._head) >= length

    def _cut(self, length: int) -> memoryview:
        piece = self._rest[:length]
        self._rest = self._rest[length:]
        return piece

    def _keep(self, piece: memoryview) -> None:
        """Small pieces are put together at once: each object costs more than the bytes in it."""
        self._missing -= len(piece)
        if len(piece) >= _SMALL_BYTES or not self._missing:
            self._pieces.append(piece)
        elif self._pieces and isinstance(last := self._pieces[-1], bytearray):
            last += piece
        else:
            self._pieces.append(bytearray(piece))


def read_header(text: bytes | bytearray) -> Header:
    """What a frame says."""
    try:
        header = _decode(text.decode())
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame's header is not JSON") from error
    if not isinstance(header, dict):
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

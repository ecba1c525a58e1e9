"""Frames on a link: a JSON header and a body of bytes, both bounded.

    | header length, 4 bytes | body length, 4 bytes | header, JSON | body |

The first frame on a link is a hello with the protocol's version and the job's id; a peer of another
version or another job is told so and hung up on. Pure: reading from sockets is `agent.link`'s business.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from windlass import names
from windlass.errors import ProtocolError

_LENGTHS = struct.Struct(">II")

Header = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Frame:
    """One message: what it says, and the bytes it carries."""

    header: Header
    body: bytes = b""

    @property
    def type(self) -> str:
        return str(self.header.get("type", ""))


def render_frame(header: Header, body: bytes = b"") -> bytes:
    """The bytes of one frame."""
    text = json.dumps(header, separators=(",", ":")).encode()
    return _LENGTHS.pack(len(text), len(body)) + text + body


@dataclass(slots=True)
class FrameDecoder:
    """Cuts a stream of bytes into frames; refuses what is too long before it is buffered."""

    max_header_bytes: int = names.MAX_HEADER_BYTES
    max_body_bytes: int = names.MAX_BODY_BYTES
    _buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add bytes, yield each frame that is now complete."""
        self._buffer += data
        while (frame := self._take()) is not None:
            yield frame

    def _take(self) -> Frame | None:
        if len(self._buffer) < _LENGTHS.size:
            return None
        header_length, body_length = _LENGTHS.unpack_from(self._buffer)
        if header_length > self.max_header_bytes or body_length > self.max_body_bytes:
            raise ProtocolError(
                f"a frame of {header_length} + {body_length} bytes is over the limit",
                hint="the peer does not speak Windlass's protocol",
            )
        start, end = _LENGTHS.size + header_length, _LENGTHS.size + header_length + body_length
        if len(self._buffer) < end:
            return None
        header = _read_header(bytes(self._buffer[_LENGTHS.size : start]))
        body = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return Frame(header, body)


def _read_header(text: bytes) -> Header:
    try:
        header = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProtocolError("a frame's header is not JSON") from error
    if not isinstance(header, dict):
        raise ProtocolError("a frame's header is not an object")
    return header


def make_hello(*, role: str, job_id: str, node: int | None = None) -> dict[str, Any]:
    """The first frame: who is there, and which protocol is spoken."""
    return {
        "type": "hello",
        "version": names.PROTOCOL_VERSION,
        "role": role,
        "job_id": job_id,
        "node": node,
    }


def check_hello(header: Header, *, job_id: str) -> None:
    """Refuse a peer that speaks another version or belongs to another job."""
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


def refusal(header: Header) -> ProtocolError | None:
    """The error a refused peer should raise."""
    if header.get("type") != "refused":
        return None
    return ProtocolError(str(header.get("why", "refused")), hint=str(header.get("hint", "")))

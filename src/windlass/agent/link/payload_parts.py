"""Transfer of large payloads between machines.

The sender splits a payload into parts and sends them as fast as the receiver reads. The receiver writes them
to a file and keeps the file until a message claims it. This module does not interpret payloads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from windlass import names
from windlass.agent.link.agent_link import Link
from windlass.errors import ProtocolError
from windlass.wire import payloads
from windlass.wire.message import Message
from windlass.wire.messages.computes import PayloadPart

M = TypeVar("M", bound=Message)
Ship = Callable[[str, str], Awaitable[None]]  # sends a payload before its message, by key and file


class PartStore:
    """Received payloads, by the key that the sender chose.

    `is_far` means that senders are on other machines, so paths in their messages are not valid here.
    """

    def __init__(self, spill: Path, *, is_far: bool) -> None:
        self._spill = str(spill)
        self._is_far = is_far
        self._paths: dict[str, str] = {}

    def take(self, part: PayloadPart, body: bytes) -> None:
        """Append one part. The parts of a payload arrive in order."""
        key = part.payload
        if key not in self._paths:
            self._paths[key] = payloads.new_path(self._spill)
        with open(self._paths[key], "ab") as file:
            file.write(body)

    def with_file(self, message: M) -> M:
        """Return a message with the file of its payload, which arrived before it.

        `is_ours` is set here only. A value from the sender is ignored.
        """
        key, file = getattr(message, "payload", ""), getattr(message, "file", "")
        if key:
            return message.replaced(file=self.claim(key), payload="", is_ours=True)
        if message.has_field("is_ours") or (file and self._is_far):
            return message.replaced(file="" if self._is_far else file, is_ours=False)
        return message

    def claim(self, key: str) -> str:
        """Return the file of a complete payload. The caller owns it from now on."""
        try:
            return self._paths.pop(key)
        except KeyError:
            raise ProtocolError(f"no parts of payload {key!r:.60} have arrived") from None

    def drop(self) -> None:
        """Delete the payloads that were not claimed."""
        for path in self._paths.values():
            payloads.forget(path)
        self._paths.clear()


async def send_parts(link: Link, key: str, path: str) -> None:
    """Send a file in parts, no faster than the other side reads."""
    with open(path, "rb") as file:
        while data := file.read(names.PART_BYTES):
            link.send(PayloadPart(payload=key), data)
            await link.drain()

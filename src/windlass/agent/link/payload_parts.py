"""Payloads between machines: a large one is cut into parts, sent as fast as the other side reads, and kept in
a file there until somebody claims it. What is in it is nobody's business here.
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
Ship = Callable[[str, str], Awaitable[None]]  # sends a payload ahead: its key and its file


class PartStore:
    """Payloads that arrive, by the key their sender gave them.

    `is_far` where senders are on other machines: a path that one of them names is none of this machine's.
    """

    def __init__(self, spill: Path, *, is_far: bool) -> None:
        self._spill = str(spill)
        self._is_far = is_far
        self._paths: dict[str, str] = {}

    def take(self, part: PayloadPart, body: bytes) -> None:
        """One part; parts of a payload come in order."""
        key = part.payload
        if key not in self._paths:
            self._paths[key] = payloads.new_path(self._spill)
        with open(self._paths[key], "ab") as file:
            file.write(body)

    def with_file(self, message: M) -> M:
        """A message with the file of the payload that came ahead of it; whose that is, nobody else says."""
        key, file = getattr(message, "payload", ""), getattr(message, "file", "")
        if key:
            return message.replaced(file=self.claim(key), payload="", is_ours=True)
        if message.says("is_ours") or (file and self._is_far):
            return message.replaced(file="" if self._is_far else file, is_ours=False)
        return message

    def claim(self, key: str) -> str:
        """The file of a payload that has come whole; it is the caller's from now on."""
        try:
            return self._paths.pop(key)
        except KeyError:
            raise ProtocolError(f"nothing came of the payload {key!r:.60}") from None

    def drop(self) -> None:
        """Forget those that nobody claimed."""
        for path in self._paths.values():
            payloads.forget(path)
        self._paths.clear()


async def send_parts(link: Link, key: str, path: str) -> None:
    """Send a file, no faster than the other side reads."""
    with open(path, "rb") as file:
        while data := file.read(names.PART_BYTES):
            link.send(PayloadPart(payload=key), data)
            await link.drain()

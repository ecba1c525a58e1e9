"""Payloads between machines: a large one is cut into parts, sent as fast as the other side reads, and kept in
a file there until somebody claims it. What is in it is nobody's business here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass import names
from windlass.agent.link.agent_link import Link
from windlass.wire import payloads
from windlass.wire.frames import Frame


class PartStore:
    """Payloads that arrive, by the key their sender gave them.

    `is_far` where senders are on other machines: a path that one of them names is none of this machine's.
    """

    def __init__(self, spill: Path, *, is_far: bool) -> None:
        self._spill = str(spill)
        self._is_far = is_far
        self._paths: dict[str, str] = {}

    def take(self, frame: Frame) -> None:
        """One part; parts of a payload come in order."""
        key = str(frame.header["payload"])
        if key not in self._paths:
            self._paths[key] = payloads.new_path(self._spill)
        with open(self._paths[key], "ab") as file:
            file.write(frame.body)

    def with_file(self, frame: Frame) -> dict[str, Any]:
        """What a frame says, with the file of the payload that came ahead of it."""
        header = dict(frame.header)
        if self._is_far:
            header.pop("file", None)
        key = header.pop("payload", None)
        if key is None:
            return {**header, "is_ours": False}
        return {**header, "file": self.claim(str(key)), "is_ours": True}

    def claim(self, key: str) -> str:
        """The file of a payload that has come whole; it is the caller's from now on."""
        return self._paths.pop(key)

    def drop(self) -> None:
        """Forget those that nobody claimed."""
        for path in self._paths.values():
            payloads.forget(path)
        self._paths.clear()


async def send_parts(link: Link, key: str, path: str) -> None:
    """Send a file, no faster than the other side reads."""
    with open(path, "rb") as file:
        while data := file.read(names.PART_BYTES):
            link.send({"type": names.PART_FRAME, "payload": key}, data)
            await link.drain()

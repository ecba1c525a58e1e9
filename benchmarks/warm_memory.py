"""Peak memory of an operation, and the processes with a mark in their environment. Linux only.

The peak is the largest drop in the machine's available memory. Shared pages therefore count once. Files in
memory, pods on this machine and all other running programs count too.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_S = 5.0
_LOOK_S = 0.01


class Marked:
    """The processes with NAME=VALUE in their environment."""

    def __init__(self, mark: str) -> None:
        self._wanted = f"\0{mark}\0".encode()

    def pids(self) -> list[int]:
        found = Path("/proc").glob("[0-9]*/environ")
        return [int(path.parent.name) for path in found if self._wanted in b"\0" + _read(path)]

    def end(self) -> None:
        """Wait for the processes to end, and kill those that do not."""
        deadline = time.monotonic() + _LIMIT_S
        while (remaining := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in remaining:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def read_available() -> int:
    """Return the machine's available memory in bytes."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("warm: /proc/meminfo has no MemAvailable line")


@contextmanager
def watched(available: Callable[[], int] = read_available) -> Iterator[list[int]]:
    """Yield a list that receives one entry at the end: the largest drop in available bytes."""
    before = available()
    low = [before]
    is_over = threading.Event()

    def look() -> None:
        while not is_over.wait(_LOOK_S):
            low[0] = min(low[0], available())

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    grown: list[int] = []
    try:
        yield grown
    finally:
        is_over.set()
        watcher.join()
    grown.append(before - min(low[0], available()))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

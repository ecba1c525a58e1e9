"""How much memory one thing took at its peak, and the processes that carry a mark in their environment.

Linux only. Memory is the machine's: what it had less of at the worst moment, so shared pages count once,
files in memory count, and so do pods on this machine. Whatever else runs meanwhile counts, too.
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
        """Whoever is left gets a moment, then SIGKILL."""
        deadline = time.monotonic() + _LIMIT_S
        while (left := self.pids()) and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue


def read_available() -> int:
    """How many bytes of the machine's memory could be had now."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("warm: /proc/meminfo does not say how much memory is available")


@contextmanager
def watched(available: Callable[[], int] = read_available) -> Iterator[list[int]]:
    """Afterwards the one entry of the list: how many bytes less there were at the worst moment."""
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

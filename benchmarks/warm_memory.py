"""The memory of all processes that carry a mark in their environment: their peak during one thing.

Linux only. Forked processes are seen by their parent's mark. A page that two processes share counts twice.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIMIT_S = 5.0
_RESET_PEAK = "5"


class Marked:
    """The processes with NAME=VALUE in their environment."""

    def __init__(self, mark: str) -> None:
        self._wanted = f"\0{mark}\0".encode()

    def pids(self) -> list[int]:
        found = Path("/proc").glob("[0-9]*/environ")
        return [int(path.parent.name) for path in found if self._wanted in b"\0" + _read(path)]

    @contextmanager
    def watched(self) -> Iterator[list[int]]:
        """Afterwards the one entry of the list: by how many bytes all together grew at most.

        Peaks are added up, whether or not they were at the same moment: never too little.
        """
        before = {}
        for pid in self.pids():
            before[pid] = _field(pid, "VmRSS")
            _reset_peak(pid)
        grown: list[int] = []
        yield grown
        after = {pid: _field(pid, "VmHWM") for pid in self.pids()}
        grown.append(sum(max(0, peak - before.get(pid, 0)) for pid, peak in after.items()))

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


def _field(pid: int, name: str) -> int:
    for line in _read(Path(f"/proc/{pid}/status")).decode().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0


def _reset_peak(pid: int) -> None:
    try:
        Path(f"/proc/{pid}/clear_refs").write_text(_RESET_PEAK)
    except OSError:
        return


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""

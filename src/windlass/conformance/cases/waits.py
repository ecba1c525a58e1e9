"""Waiting with a deadline, and a search for leftover processes."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def wait_for(condition: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Wait for a condition with a deadline."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"after {timeout_s} s still not: {what}"
        time.sleep(0.01)


def find_leftovers(home: Path) -> list[str]:
    """Find processes of the jobs under `home`, by their command line or environment."""
    left = []
    needle = str(home).encode()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if (entry / "stat").read_text().rpartition(")")[2].split()[0] == "Z":
                continue
            command = (entry / "cmdline").read_bytes()
            environ = (entry / "environ").read_bytes()
        except OSError:
            continue
        is_ours = b"WINDLASS_JOB_ID=" in environ or b".pyz\0agent\0" in command
        if is_ours and (needle in command or needle in environ):
            left.append(f"{entry.name}: {command.replace(bytes(1), b' ').decode(errors='replace')}")
    return left

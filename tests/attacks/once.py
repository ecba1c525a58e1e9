"""Functions that leave a trace each time they run. They are importable, so calls send them by reference."""

from __future__ import annotations

import os
import time
from pathlib import Path


def append(path: str, text: str) -> None:
    with open(path, "a") as file:
        file.write(f"{text}\n")


def append_and_hang(path: str) -> None:
    """Write the PID of the process that leads this node, and never return."""
    append(path, str(_parent(_parent(os.getpid()))))
    time.sleep(600)


def echo(value: object) -> object:
    return value


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

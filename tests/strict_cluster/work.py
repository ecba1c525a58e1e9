"""What jobs of these tests do that need no torch, which nobody here waits for. Copied into a project."""

from __future__ import annotations

import os
import signal


def stay() -> None:
    print("up", flush=True)
    signal.pause()


def hello() -> str:
    print("hello from", os.environ["RANK"], flush=True)
    return "hello"


def look() -> dict[str, object]:
    """What a rank can see of its agent: the Secret's files, and both processes' environments."""
    agent = "/proc/1"
    with open(f"{agent}/environ", "rb") as environ, open(f"{agent}/cmdline", "rb") as words:
        started_with = [environ.read().decode(), words.read().decode()]
    return {
        "files": sorted(
            name for name in os.listdir("/windlass/secret") if not name.startswith("..")
        ),
        "texts": [*started_with, *(f"{name}={value}" for name, value in os.environ.items())],
    }

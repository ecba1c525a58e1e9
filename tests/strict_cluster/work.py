"""Work of the jobs in these tests without torch, which is slow to import. Copied into a project."""

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
    """Return what a rank can see of its agent: the Secret's files, and the environments of both processes."""
    agent = "/proc/1"
    with open(f"{agent}/environ", "rb") as environ, open(f"{agent}/cmdline", "rb") as words:
        started_with = [environ.read().decode(), words.read().decode()]
    return {
        "files": sorted(
            name for name in os.listdir("/windlass/secret") if not name.startswith("..")
        ),
        "texts": [*started_with, *(f"{name}={value}" for name, value in os.environ.items())],
    }

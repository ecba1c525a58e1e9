"""Helpers that run the CLI in a subprocess, with its result and sample scripts."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from typing import Any

WINDLASS = [sys.executable, "-m", "windlass.cli.main"]

WORK = '''
import os
import signal
import sys
from pathlib import Path

import windlass as wl


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: the first one
    """
    print("adding on", os.environ["RANK"])
    print("to stderr", file=sys.stderr)
    return a + b


def odd() -> object:
    return {"nan": float("nan"), "path": Path("/x"), "text": "\\x1b[2Jclear"}


def fail() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("boom \\x1b]0;title\\x07")
    signal.pause()


def flaky() -> int:
    if os.environ["WINDLASS_ATTEMPT"] == "0":
        raise RuntimeError("only the first time")
    return 7


def steps() -> None:
    for step in range(1, 4):
        wl.report(step=step, total=3, loss=1 / step)
        print("step", step)


def stay() -> None:
    print("up", flush=True)
    signal.pause()


def stubborn() -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    print("up", flush=True)
    while True:
        signal.pause()
'''


@dataclass(frozen=True)
class Ran:
    """Result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out, parse_constant=_refuse)

    @property
    def job_id(self) -> str:
        """Return the id that `run` printed to stderr."""
        found = re.search(r"windlass: (\S+) on local", self.err)
        assert found, self.err
        return found[1]


def _refuse(name: str) -> Any:
    raise AssertionError(f"{name} is not JSON")

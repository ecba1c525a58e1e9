"""Contestants from the benchmark's view: a process that answers requests, or a new start for each edit.

All processes of a contestant have a mark in their environment. It serves to find and end them. Every answer
has a deadline.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warm_memory import Marked
from warm_project import edit, read_moment

LIMIT_S = 300.0
MARK = "BENCH_RUN"
_TAIL = 4000


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Command, folder and environment that start a contestant."""

    name: str
    command: Sequence[str]
    project: Path
    env: Mapping[str, str]


class Peer:
    """A running contestant that takes requests."""

    def __init__(self, start: Start, errors: Path) -> None:
        self.name = start.name
        self._errors = errors
        mark = uuid.uuid4().hex
        self.marked = Marked(f"{MARK}={mark}")
        env = {**os.environ, **start.env, MARK: mark}
        self._process = subprocess.Popen(
            start.command, cwd=start.project, env=env, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=errors.open("wb"),
        )  # fmt: skip

    def ask(self, do: str, **request: Any) -> list[float]:
        """Send a request, and return the seconds of each repetition."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self._process.stdin.flush()
        return list(self.read_answer()["seconds"])

    def edit(self, do: str, number: int) -> float:
        return self.ask(do, number=number)[0]

    def read_answer(self) -> dict[str, Any]:
        """Return the next answer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LIMIT_S)[0]:
            self._fail(f"no answer within {LIMIT_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            self._fail(f"ended with status {self._process.wait(LIMIT_S)}")
        return dict(json.loads(line))

    def close(self) -> None:
        """Close its input so that it ends, and end the processes that it started."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self.marked.end()

    def _fail(self, message: str) -> None:
        tail = self._errors.read_text(errors="replace")[-_TAIL:]
        raise SystemExit(f"{tail}\nwarm: {self.name}: {message}")


@contextmanager
def open_peer(start: Start) -> Iterator[Peer]:
    """Start a contestant, yield it once it is ready, and end it afterwards."""
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
        peer = Peer(start, Path(folder, "errors"))
        try:
            peer.read_answer()
            yield peer
        finally:
            peer.close()


class Torchrun:
    """Contestant that starts torchrun from nothing after each edit, as its users do."""

    name = "torchrun"

    def __init__(self, program: Path, project: Path, ranks: int) -> None:
        self._command = [str(program), "--standalone", "--nproc-per-node", str(ranks)]
        self._project = project
        self._ranks = ranks

    def edit(self, do: str, number: int) -> float:
        """Edit, and run the script, which always performs the first all-reduce."""
        with tempfile.TemporaryDirectory(prefix="bench-out-") as folder:
            env = {**os.environ, "BENCH_OUT": folder}
            env.pop("PYTHONDONTWRITEBYTECODE", None)  # cache byte code, as users do
            began_s = time.time()
            edit(self._project, number)
            done = subprocess.run(
                [*self._command, "bench_train.py"], cwd=self._project, env=env, timeout=LIMIT_S,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise SystemExit(
                    f"{done.stderr[-_TAIL:]}\nwarm: torchrun: exit code {done.returncode}"
                )
            answers = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*"))]
        return read_moment(answers, ranks=self._ranks, number=number) - began_s

"""A contestant as the benchmark sees it: its own process that is asked, or a fresh start for each edit.

Everything that is started here carries one mark in its environment, so that its memory can be read and that
nothing is left behind. Every answer has a deadline.
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
    """How a contestant is started."""

    name: str
    command: Sequence[str]
    project: Path
    env: Mapping[str, str]


class Peer:
    """A contestant that is up and takes requests."""

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
        """The seconds it took, each time it was done."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
        self._process.stdin.flush()
        return list(self.hear()["seconds"])

    def edit(self, do: str, number: int) -> float:
        return self.ask(do, number=number)[0]

    def hear(self) -> dict[str, Any]:
        """Its next answer."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], LIMIT_S)[0]:
            self._fail(f"no answer in {LIMIT_S:g} s")
        line = self._process.stdout.readline()
        if not line:
            self._fail(f"ended with {self._process.wait(LIMIT_S)}")
        return dict(json.loads(line))

    def close(self) -> None:
        """No more requests: it ends by itself, and all that it started with it."""
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
def opened(start: Start) -> Iterator[Peer]:
    """A contestant while it is needed; yields once it is up."""
    with tempfile.TemporaryDirectory(prefix="bench-peer-") as folder:
        peer = Peer(start, Path(folder, "errors"))
        try:
            peer.hear()
            yield peer
        finally:
            peer.close()


class Torchrun:
    """Edit, then torchrun: every time from nothing, as its user does."""

    name = "torchrun"

    def __init__(self, program: Path, project: Path, ranks: int) -> None:
        self._command = [str(program), "--standalone", "--nproc-per-node", str(ranks)]
        self._project = project
        self._ranks = ranks

    def edit(self, do: str, number: int) -> float:
        """The script does the one thing there is to do: the first all-reduce."""
        with tempfile.TemporaryDirectory(prefix="bench-out-") as folder:
            env = {**os.environ, "BENCH_OUT": folder}
            env.pop("PYTHONDONTWRITEBYTECODE", None)  # byte code is cached, as for everybody
            began_s = time.time()
            edit(self._project, number)
            done = subprocess.run(
                [*self._command, "bench_train.py"], cwd=self._project, env=env, timeout=LIMIT_S,
                stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            )  # fmt: skip
            if done.returncode != 0:
                raise SystemExit(f"{done.stderr[-_TAIL:]}\nwarm: torchrun: {done.returncode}")
            answers = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("rank-*"))]
        return read_moment(answers, ranks=self._ranks, number=number) - began_s

"""Process of a contestant. It reads one request per line, runs it, and answers with one line.

It runs under each contestant's own Python, so it uses only the standard library and numpy. The times are
taken here, next to the call, with the same code for all contestants. A contestant only implements a call of a
project function on all ranks. Answers go to stdout. All other output is redirected to stderr.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from warm_project import edit, read_moment


class Side(Protocol):
    """Interface of a contestant."""

    ranks: int

    def call(self, name: str, *arguments: Any) -> list[Any]:
        """Call this function of the project on every rank, and return the values in rank order."""
        ...

    def refresh(self) -> None:
        """Do what users do between an edit and the call."""
        ...

    def close(self) -> None: ...


def serve(open_side: Callable[[], Side], project: Path) -> None:
    """Answer requests until the end of the input."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    began_s = time.time()
    side = open_side()
    try:
        _write(answers, {"up_s": time.time() - began_s})
        for line in sys.stdin:
            _write(answers, _do(side, project, **json.loads(line)))
    finally:
        side.close()


def _do(side: Side, project: Path, do: str, **request: Any) -> dict[str, Any]:
    if do == "empty":
        return {"seconds": _time_empty(side, request["num"])}
    if do == "argument":
        return {"seconds": [_time_argument(side, request["num_bytes"])]}
    return {"seconds": [_time_edit(side, project, do, request["number"])]}


def _time_empty(side: Side, num: int) -> list[float]:
    seconds = []
    for _ in range(num):
        began_s = time.perf_counter()
        answers = side.call("empty")
        seconds.append(time.perf_counter() - began_s)
        if answers != [None] * side.ranks:
            raise RuntimeError(f"expected {side.ranks} empty answers, got {answers}")
    return seconds


def _time_argument(side: Side, num_bytes: int) -> float:
    import numpy as np

    data = np.frombuffer(os.urandom(1 << 20) * (num_bytes >> 20), dtype=np.uint8)
    expected = int(data[::4096].sum())
    began_s = time.perf_counter()
    answers = side.call("read_all", data)
    took_s = time.perf_counter() - began_s
    if answers != [expected] * side.ranks:
        raise RuntimeError(f"expected {expected} from every rank, got {answers}")
    return took_s


def _time_edit(side: Side, project: Path, name: str, number: int) -> float:
    """Measure from the moment before the file is written to the slowest rank's own stamp."""
    began_s = time.time()
    edit(project, number)
    side.refresh()
    answers = side.call(name)
    return read_moment(answers, ranks=side.ranks, number=number) - began_s


def _write(answers: Any, answer: dict[str, Any]) -> None:
    answers.write(json.dumps(answer) + "\n")
    answers.flush()

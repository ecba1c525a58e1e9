"""A rank's result file: one line of JSON that anyone may read, then the pickled value or exception.

The line alone tells what happened (and what `windlass result` prints), so that only a client that wants
the value itself unpickles anything. Records and bytes only; pickling is `agent.values` and `client.values`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass import records
from windlass.errors import ProtocolError
from windlass.wire.folder import JobFolder, write_atomically

MISSING = "missing"


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An exception as data: enough for a verdict without unpickling anything."""

    type: str
    message: str
    traceback: str = ""
    file: str = ""
    line: int = 0
    source: str = ""

    @property
    def text(self) -> str:
        short = self.type.removeprefix("builtins.")
        return f"{short}: {self.message}" if self.message else short


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one rank ended in one attempt."""

    rank: int
    attempt: int
    state: str  # returned, raised, exited, killed, stopped, lost
    at_s: float
    exit_code: int | None = None
    signal: int | None = None
    error: ErrorInfo | None = None
    out_of_memory: bool = False
    note: str = ""  # what is known beyond that

    @property
    def is_failure(self) -> bool:
        return self.state in ("raised", "exited", "killed", "lost")


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHeader:
    """The first line of a result file."""

    rank: int
    attempt: int
    state: str  # returned or raised; missing, where what a rank returned has not come here
    at_s: float
    python: str = ""
    repr: str = ""
    json: Any = None
    is_json: bool = False
    error: ErrorInfo | None = None
    exit_code: int | None = None  # for a rank that left by sys.exit

    def outcome(self) -> Outcome:
        return Outcome(
            rank=self.rank,
            attempt=self.attempt,
            state=self.state,
            at_s=self.at_s,
            exit_code=self.exit_code,
            error=self.error,
        )


def write_result(path: Path, header: ResultHeader, payload: bytes) -> None:
    """Write one rank's result in one step."""
    line = json.dumps(records.to_json(header), separators=(",", ":")).encode()
    write_atomically(path, line, b"\n", payload)


def read_header(path: Path) -> ResultHeader | None:
    """The first line of a result; None when the rank left none."""
    try:
        with path.open("rb") as file:
            line = file.readline()
    except FileNotFoundError:
        return None
    return _parse(path, line)


def read_result(path: Path) -> tuple[ResultHeader, bytes] | None:
    """The whole result; None when the rank left none."""
    try:
        with path.open("rb") as file:
            line = file.readline()
            return _parse(path, line), file.read()
    except FileNotFoundError:
        return None


def read_results(
    folder: JobFolder, *, attempt: int, num_ranks: int
) -> list[tuple[ResultHeader, bytes] | None]:
    """What each rank left in one attempt, in rank order."""
    return [read_result(folder.result(attempt, rank)) for rank in range(num_ranks)]


def make_missing(rank: int, attempt: int, why: str) -> tuple[ResultHeader, bytes]:
    """In the place of a result that was there once: never to be taken for None."""
    error = ErrorInfo(type="windlass.errors.EngineError", message=why)
    return ResultHeader(rank=rank, attempt=attempt, state=MISSING, at_s=0.0, error=error), b""


def _parse(path: Path, line: bytes) -> ResultHeader:
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ProtocolError(f"{path} is not a result file") from error
    return records.read(ResultHeader, data)

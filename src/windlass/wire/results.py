"""A rank's result file: one line of JSON, then the pickled value or exception.

The line has the outcome and the text that `windlass result` prints, so only a client that needs the value
itself unpickles anything. This module handles records and bytes. `wire.pickling` and `client.jobs.job` pickle
and unpickle values.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

from windlass import records
from windlass.errors import ProtocolError
from windlass.trusted import open_now
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.states import FAILED, RankState

MISSING = "missing"
MAX_NAME, MAX_MESSAGE, MAX_TRACEBACK = 200, 4_000, 20_000
_MAX_TEXT = 10_000
MAX_HEADER_BYTES = 8 << 20  # a rank can write any file, but real headers are far shorter


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorInfo:
    """An exception as data: enough for a verdict without unpickling anything."""

    type: str
    message: str
    traceback: str = ""
    file: str = ""
    line: int = 0
    source: str = ""

    def clip(self) -> ErrorInfo:
        """Return a copy truncated to the lengths that Windlass writes. User code can write longer texts."""
        return replace(
            self,
            type=self.type[:MAX_NAME],
            message=self.message[:MAX_MESSAGE],
            traceback=self.traceback[-MAX_TRACEBACK:],
            file=self.file[:MAX_MESSAGE],
            source=self.source[:MAX_NAME],
        )

    @property
    def text(self) -> str:
        short = self.type.removeprefix("builtins.")
        return f"{short}: {self.message}" if self.message else short


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Outcome of one rank in one attempt."""

    rank: int
    attempt: int
    state: RankState
    at_s: float
    exit_code: int | None = None
    signal: int | None = None
    error: ErrorInfo | None = None
    out_of_memory: bool = False
    note: str = ""  # further details

    @property
    def is_failure(self) -> bool:
        return self.state in FAILED


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHeader:
    """The first line of a result file."""

    rank: int
    attempt: int
    state: str  # "returned", "raised", or "missing" if the value did not arrive here
    at_s: float
    python: str = ""
    repr: str = ""
    json: Any = None
    is_json: bool = False
    error: ErrorInfo | None = None
    exit_code: int | None = None  # set if the rank called sys.exit

    def outcome(self) -> Outcome:
        return Outcome(
            rank=self.rank,
            attempt=self.attempt,
            state=_read_state(self.state),
            at_s=self.at_s,
            exit_code=self.exit_code,
            error=self.error.clip() if self.error else None,
        )


def _read_state(word: str) -> RankState:
    """Return the state, or EXITED if it is unknown, so that a forged file does not count as success."""
    try:
        return RankState(word)
    except ValueError:
        return RankState.EXITED


def write_result(path: Path, header: ResultHeader, payload: bytes) -> None:
    """Write one rank's result atomically."""
    line = json.dumps(records.to_json(header), separators=(",", ":")).encode()
    write_atomically(path, line, b"\n", payload, is_durable=True)


def read_header(path: Path) -> ResultHeader | None:
    """Return the header of a result, or None if there is no file."""
    try:
        with open(path, "rb", opener=open_now) as file:
            return _read_line(path, file)
    except FileNotFoundError:
        return None


def read_result(path: Path) -> tuple[ResultHeader, bytes] | None:
    """Return the header and payload of a result, or None if there is no file."""
    try:
        with open(path, "rb", opener=open_now) as file:
            return _read_line(path, file), file.read()
    except FileNotFoundError:
        return None


def read_results(
    folder: JobFolder, *, attempt: int, num_ranks: int, with_values: bool = True
) -> list[tuple[ResultHeader, bytes] | None]:
    """Return the results of one attempt in rank order.

    All values together may not fit in memory. Without `with_values`, the payloads are empty.
    """
    paths = [folder.result(attempt, rank) for rank in range(num_ranks)]
    if with_values:
        return [read_result(path) for path in paths]
    headers = (read_header(path) for path in paths)
    return [None if header is None else (header, b"") for header in headers]


def make_missing(rank: int, attempt: int, why: str) -> tuple[ResultHeader, bytes]:
    """Return a substitute for a result that no longer exists, so that it is not mistaken for None."""
    error = ErrorInfo(type="windlass.errors.EngineError", message=why)
    return ResultHeader(rank=rank, attempt=attempt, state=MISSING, at_s=0.0, error=error), b""


def _read_line(path: Path, file: BinaryIO) -> ResultHeader:
    line = file.readline(MAX_HEADER_BYTES + 1)
    try:
        return records.read(
            ResultHeader, records.parse(line, "its first line", max_bytes=MAX_HEADER_BYTES)
        )
    except ProtocolError as error:
        raise ProtocolError(f"{path} is not a result file: {error.message}") from error


def describe_value(value: Any) -> tuple[str, bool, Any]:
    """Return the truncated repr of a value, whether it is small JSON, and the JSON value if it is."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - a user's __repr__ may raise anything
        text = f"<{type(value).__name__}, whose repr raised {type(error).__name__}>"
    try:
        plain = json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return text[:_MAX_TEXT], False, None
    is_json = len(plain) <= _MAX_TEXT and not records.is_deep(value)
    return text[:_MAX_TEXT], is_json, value if is_json else None

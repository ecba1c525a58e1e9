"""Rows of JSONL files, which are memory-mapped. Only the starts of their lines are kept in memory.

`JsonlRows` is a map dataset. `read_kind` returns whether a row has a text or messages for language modeling.
Errors name the file and the line. Called by users and by token_cache. This module does not tokenize.
"""

from __future__ import annotations

import json
import mmap
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, overload

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

KINDS = ("text", "messages")


class JsonlRows(Sequence[dict[str, Any]]):
    """Rows of one or more JSONL files, or of all *.jsonl of a folder, without blank lines."""

    is_read_in_background = True  # a thread can read it, because it draws no random numbers

    def __init__(self, paths: str | Path | Iterable[str | Path]) -> None:
        self.paths = find_files(paths)
        self._open()
        if not len(self):
            raise SpecError(
                f"{', '.join(map(str, self.paths))} has no rows",
                hint="write one JSON object on each line",
            )

    def _open(self) -> None:
        self._maps = [_map(path) for path in self.paths]
        self._starts = [_find_starts(content) for content in self._maps]
        self._ends: list[int] = []  # end of each file, counted in rows
        for starts in self._starts:
            self._ends.append(len(starts) + (self._ends[-1] if self._ends else 0))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number, start = self._find(index)
        content = self._maps[number]
        end = content.find(b"\n", start)
        line = content[start : len(content) if end < 0 else end]
        try:
            row = json.loads(line)
        except UnicodeDecodeError as error:
            raise SpecError(
                f"{self.where(index)} is not valid UTF-8: byte 0x{line[error.start]:02x} at "
                f"position {error.start + 1} of the line",
                hint="convert the file, for example with `iconv -f latin1 -t utf-8 OLD > NEW`",
            ) from error
        except (ValueError, RecursionError) as error:
            raise SpecError(
                f"{self.where(index)} is not valid JSON: {error}",
                hint="write one complete JSON object on that line",
            ) from error
        if not isinstance(row, dict):
            raise SpecError(
                f"{self.where(index)} is a {type(row).__name__}, not an object",
                hint='write each row as {"text": ...}',
            )
        return row

    def where(self, index: int) -> str:
        """Return the location of a row as file:line."""
        number, start = self._find(index)
        line = self._maps[number][:start].count(b"\n") + 1
        return f"{self.paths[number]}:{line}"

    def _find(self, index: int) -> tuple[int, int]:
        if not -len(self) <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        index %= len(self)
        number = bisect_right(self._ends, index)
        return number, self._starts[number][index - (self._ends[number - 1] if number else 0)]

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths}  # maps cannot be pickled, so a worker process makes its own

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.paths = state["paths"]
        self._open()


def find_files(paths: str | Path | Iterable[str | Path]) -> tuple[Path, ...]:
    """Return the given files, with folders replaced by their *.jsonl files. Raise if one is missing."""
    files: list[Path] = []
    for path in [paths] if isinstance(paths, (str, Path)) else paths:
        path = Path(path)
        if path.is_dir():
            inside = sorted(path.glob("*.jsonl"))
            for packed in sorted(path.glob("*.jsonl.gz")):
                if packed.with_suffix("") not in inside:
                    raise _compressed(packed)
            if not inside:
                raise SpecError(
                    f"{path} contains no *.jsonl file",
                    hint="pass the file, or the folder that contains it",
                )
            files += inside
        elif path.is_file():
            files.append(path)
        else:
            raise SpecError(f"file not found: {path}", hint=_explain_missing(path))
    if not files:
        raise SpecError("no data file given", hint="pass at least one *.jsonl file")
    return tuple(files)


def read_kind(row: dict[str, Any], where: Callable[[], str]) -> str:
    """Return the kind of a row for language modeling, "text" or "messages"."""
    for kind, type_ in (("messages", list), ("text", str)):
        if isinstance(row.get(kind), type_):
            return kind
    unusable = [kind for kind in KINDS if kind in row]
    keys = ", ".join(map(repr, row)) or "nothing"
    raise SpecError(
        f"{where()} has neither a text nor messages: it has {keys}",
        hint=f"`{unusable[0]}` is a {type(row[unusable[0]]).__name__} in this row"
        if unusable
        else 'write rows as {"text": "..."} or {"messages": [{"role": "user", "content": "..."}, ...]}',
    )


def _compressed(path: Path) -> SpecError:
    return SpecError(f"{path} is compressed", hint=f"run `gunzip --keep {path}`")


def _explain_missing(path: Path) -> str:
    if not path.parent.is_dir():
        return (
            f"the folder {path.parent} does not exist either; check whether the volume is mounted"
        )
    names = sorted(entry.name for entry in path.parent.iterdir())[:20]
    return did_you_mean(path.name, names) if names else f"the folder {path.parent} is empty"


def _map(path: Path) -> mmap.mmap | bytes:
    with path.open("rb") as file:
        if not path.stat().st_size:
            return b""  # an empty file cannot be mapped
        if file.read(2) == b"\x1f\x8b":
            raise _compressed(path)
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _find_starts(content: mmap.mmap | bytes) -> array[int]:
    starts = array("Q")
    start = 0
    while start < len(content):
        end = content.find(b"\n", start)
        end = len(content) if end < 0 else end
        if content[start:end].strip():
            starts.append(start)
        start = end + 1
    return starts

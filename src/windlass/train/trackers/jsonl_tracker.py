"""`metrics.jsonl` in the run's folder, with one JSON object per line, appended over all attempts.

This tracker is always on. `windlass report` reads the file, without a service or a library. A line has
"event" ("start", "metrics" or "end"), "time", "attempt", "world_size" and the fields of the event. Numbers
that JSON lacks are the texts "nan", "inf" and "-inf", which float() reads. Standard library only.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass import names
from windlass.train.trackers.tracker import flatten


class JsonlTracker:
    """Tracker that writes this attempt's lines, all pending ones at once."""

    name = "jsonl"
    is_file = True
    every_s = 0.2

    def __init__(self, folder: Path, *, attempt: int, world_size: int) -> None:
        self.run_id: str | None = None
        self._path = folder / names.METRICS_FILE
        self._facts = {"attempt": attempt, "world_size": world_size}
        self._file: int | None = None
        self._data = bytearray()  # not written yet
        self._is_ended = False

    def start(self, params: Mapping[str, Any]) -> None:
        if self._file is None:
            self._open()
            plain = {name: _plain(value) for name, value in flatten(params).items()}
            self._add("start", time.time(), params=plain)
        self.flush()

    def _open(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        if _ends_within_a_line(self._file):
            self._data += b"\n"  # an attempt was killed while writing

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None:
        self._add("metrics", time_s, step=step, metrics={k: _plain(v) for k, v in metrics.items()})

    def flush(self) -> None:
        while self._data and self._file is not None:
            del self._data[: os.write(self._file, self._data)]

    def close(self, *, ok: bool = True) -> None:
        if self._file is None:
            return
        if not self._is_ended:  # a retry only writes the remaining data
            self._add("end", time.time(), ok=ok)
            self._is_ended = True
        self.flush()
        os.close(self._file)
        self._file = None

    def _add(self, event: str, time_s: float, **fields: Any) -> None:
        line = {"event": event, "time": round(time_s, 6), **self._facts, **fields}
        self._data += json.dumps(line, separators=(",", ":"), allow_nan=False).encode() + b"\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedRecord:
    """Logged metrics from one line."""

    step: int
    time_s: float
    metrics: dict[str, float]


def read_records(path: Path) -> Iterator[SavedRecord]:
    """Yield the metrics of a metrics.jsonl. Broken lines and other events are skipped."""
    try:
        file = path.open("rb")
    except OSError:
        return
    with file:
        for line in file:
            try:
                content = json.loads(line)
                if content["event"] == "metrics":
                    yield SavedRecord(
                        step=int(content["step"]),
                        time_s=float(content["time"]),
                        metrics={str(k): float(v) for k, v in content["metrics"].items()},
                    )
            except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
                continue


def _ends_within_a_line(file: int) -> bool:
    size = os.fstat(file).st_size
    return size > 0 and os.pread(file, 1, size - 1) != b"\n"


def _plain(value: Any) -> Any:
    """Return a value that strict JSON supports."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value)

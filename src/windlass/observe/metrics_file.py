"""metrics.jsonl of a training run, read: its sessions, and in each the stretches of steps that were timed.

Reads files only; imports no torch and nothing of windlass.train. Lines that are broken (a kill in
mid-write) or of no known kind are left out. A session is what stands between two starts: an attempt, or a
job that went on with the run.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from windlass import names

_MAX_LINE_BYTES = 1 << 20  # a line has some kilobytes; a longer one is not read into memory
_DEEPEST = 3  # folders below the one that was named: <jobs>/<job>/out/<run>


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps since the line before, with their sums: what one line with meters says."""

    last_step: int
    num_steps: int
    elapsed_s: float
    tokens: float
    samples: float
    data_wait_s: float
    mfu: float | None
    step_p50_s: float
    memory_peak_bytes: float

    @property
    def first_step(self) -> int:
        return self.last_step - self.num_steps + 1


@dataclass(slots=True, kw_only=True)
class Session:
    """One start of a run, on some number of ranks."""

    world_size: int
    started_s: float
    ended_s: float
    is_ok: bool | None = None  # None: it did not say how it ended
    stretches: list[Stretch] = field(default_factory=list)


def find_metrics_files(place: Path) -> list[Path]:
    """The file itself, or those of the runs in a folder, by name."""
    if place.is_file():
        return [place]
    files = []
    for folder, subfolders, inside in os.walk(place):
        depth = len(Path(folder).relative_to(place).parts)
        subfolders[:] = [] if depth >= _DEEPEST else sorted(subfolders)
        if names.METRICS_FILE in inside:
            subfolders.clear()
            files.append(Path(folder) / names.METRICS_FILE)
    return sorted(files)


def read_sessions(path: Path) -> list[Session]:
    """In the order in which they were written."""
    sessions: list[Session] = []
    last_attempt: object = None
    for line in _read_lines(path):
        time_s, world_size = _number(line.get("time")), int(_number(line.get("world_size"))) or 1
        if not sessions or line["event"] == "start" or line.get("attempt") != last_attempt:
            sessions.append(Session(world_size=world_size, started_s=time_s, ended_s=time_s))
        last_attempt = line.get("attempt")
        session = sessions[-1]
        session.ended_s = max(session.ended_s, time_s)
        if line["event"] == "end":
            session.is_ok = bool(line.get("ok"))
        stretch = _read_stretch(line) if line["event"] == "metrics" else None
        if stretch is not None and not _is_told_already(stretch, session):
            session.stretches.append(stretch)
    return sessions


def _is_told_already(stretch: Stretch, session: Session) -> bool:
    """Meters that are read twice without a step between say the same twice."""
    return bool(session.stretches) and stretch.last_step <= session.stretches[-1].last_step


def _read_lines(path: Path) -> Iterator[Mapping[str, Any]]:
    with path.open("rb") as file:
        while text := file.readline(_MAX_LINE_BYTES):
            if len(text) == _MAX_LINE_BYTES:
                _skip_line(file, text)
                continue
            try:
                line = json.loads(text.decode(errors="replace"))
            except (ValueError, RecursionError):
                continue
            if isinstance(line, dict) and line.get("event") in ("start", "metrics", "end"):
                yield line


def _skip_line(file: BinaryIO, text: bytes) -> None:
    """Read to the end of a line that is too long to be one of ours, a piece at a time."""
    while text and not text.endswith(b"\n"):
        text = file.readline(_MAX_LINE_BYTES)


def _read_stretch(line: Mapping[str, Any]) -> Stretch | None:
    metrics = line.get("metrics")
    if not isinstance(metrics, dict):
        return None
    num_steps, elapsed_s = int(_number(metrics.get("num_steps"))), _number(metrics.get("elapsed_s"))
    if num_steps < 1 or elapsed_s <= 0:
        return None
    return Stretch(
        last_step=int(_number(line.get("step"))),
        num_steps=num_steps,
        elapsed_s=elapsed_s,
        tokens=_number(metrics.get("tokens_per_s")) * elapsed_s,
        samples=_number(metrics.get("samples_per_s")) * elapsed_s,
        data_wait_s=_number(metrics.get("data_wait_share")) * elapsed_s,
        mfu=_number(metrics["mfu"]) if "mfu" in metrics else None,
        step_p50_s=_number(metrics.get("step_p50_s")),
        memory_peak_bytes=_number(metrics.get("memory_peak_bytes")),
    )


def _number(value: object) -> float:
    """0 for what is no number, or none to count with."""
    if isinstance(value, (int, float)) and abs(value) < float("inf"):
        return float(value)
    return 0.0

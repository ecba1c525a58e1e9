"""Results of training runs: throughput, its scaling with ranks, waits, and lost time.

Reads the metrics.jsonl of a run as sessions, each with its timed stretches of steps. A session is one start
of the run: an attempt, or a job that resumed it. Broken lines (from a kill during a write) and lines of
unknown kind are skipped. Imports neither torch nor windlass.train.

A row is a run on one number of ranks, so a run that continued with fewer ranks has two. Ideal throughput
is that of the fewest ranks, scaled by the number of ranks. `write_chart` draws throughput and efficiency
for `windlass report --png`, and is the only function that imports matplotlib.
"""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any, BinaryIO

from windlass import names
from windlass.errors import SpecError

_MAX_LINE_BYTES = 1 << 20  # lines have a few kilobytes, and longer ones are not read into memory
_MAX_DEPTH = 3  # levels of subfolders to search: <jobs>/<job>/out/<run>
_MUCH_WAITING = 0.2
_MAX_LOST_SHARE = 0.1
_SAME_BATCH = 0.02  # relative tolerance, because the last step of an epoch may be smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps between two lines with meters, with their sums."""

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
    """One start of a run, with a fixed number of ranks."""

    world_size: int
    started_s: float
    ended_s: float
    stretches: list[Stretch] = field(default_factory=list)


def find_metrics_files(place: Path) -> list[Path]:
    """Return the file itself, or the sorted metrics files of the runs in a folder."""
    if place.is_file():
        return [place]
    files = []
    for folder, subfolders, inside in os.walk(place):
        depth = len(Path(folder).relative_to(place).parts)
        subfolders[:] = [] if depth >= _MAX_DEPTH else sorted(subfolders)
        if names.METRICS_FILE in inside:
            subfolders.clear()
            files.append(Path(folder) / names.METRICS_FILE)
    return sorted(files)


def read_sessions(path: Path) -> list[Session]:
    """Return the sessions in the order in which they were written."""
    sessions: list[Session] = []
    last_attempt: object = None
    for line in _read_lines(path):
        time_s, world_size = _number(line.get("time")), int(_number(line.get("world_size"))) or 1
        if not sessions or line["event"] == "start" or line.get("attempt") != last_attempt:
            sessions.append(Session(world_size=world_size, started_s=time_s, ended_s=time_s))
        last_attempt = line.get("attempt")
        session = sessions[-1]
        session.ended_s = max(session.ended_s, time_s)
        stretch = _read_stretch(line) if line["event"] == "metrics" else None
        if stretch is not None and not _is_repeated(stretch, session):
            session.stretches.append(stretch)
    return sessions


def _is_repeated(stretch: Stretch, session: Session) -> bool:
    """Return whether a stretch repeats the previous one, because no step ran between two readings."""
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
    """Read to the end of an overlong line, one chunk at a time."""
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
    """Return the value as a float, or 0 if it is not a finite number."""
    if isinstance(value, (int, float)) and abs(value) < float("inf"):
        return float(value)
    return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A run on one number of ranks."""

    run: str
    num_ranks: int
    num_steps: int  # repeated steps count once
    num_sessions: int  # number of starts
    tokens_per_s: float | None
    samples_per_s: float | None
    step_p50_s: float
    data_wait_share: float
    mfu: float | None
    memory_peak_bytes: float
    wall_s: float  # time from the first start to the last line, including pauses between sessions
    productive_s: float  # time of steps that were not repeated
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    speed_up: float | None = None  # relative to the row with the fewest ranks
    efficiency: float | None = None  # speed-up as a share of the ideal one

    @property
    def productive_share(self) -> float:
        """Effective training time: productive seconds as a share of all seconds."""
        return min(self.productive_s / self.wall_s, 1.0) if self.wall_s > 0 else 0.0


def make_report_rows(run: str, sessions: Sequence[Session]) -> list[TrainingRow]:
    """Return one row for each number of ranks on which the run did steps."""
    kept = _kept_shares(sessions)
    sizes = sorted({session.world_size for session in sessions if session.stretches})
    return [_make_row(run, size, sessions, kept) for size in sizes]


def compare(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """Sort rows by ranks, and add speed-up and efficiency if all throughputs have the same unit."""
    ordered = sorted(rows, key=lambda row: (row.num_ranks, row.run))
    unit = common_unit(ordered)
    if not unit:
        return ordered
    first = ordered[0]
    return [
        _compared(row, first, unit) if _has_same_batch(row, first, unit) else row for row in ordered
    ]


def _has_same_batch(row: TrainingRow, first: TrainingRow, unit: str) -> bool:
    """Return whether a step, or a rank's part of it, is as large as in the first row."""
    own, other = _batch(row, unit), _batch(first, unit)
    sizes = ((own, other), (own / row.num_ranks, other / first.num_ranks))
    return any(math.isclose(one, two, rel_tol=_SAME_BATCH) for one, two in sizes)


def _batch(row: TrainingRow, unit: str) -> float:
    return (row.tokens_per_step if unit == "tokens" else row.samples_per_step) or 0.0


def common_unit(rows: Sequence[TrainingRow]) -> str:
    """Return the unit in which all rows can be compared, `tokens` or `samples`, or an empty string."""
    for unit in ("tokens", "samples"):
        if rows and all(throughput(row, unit) for row in rows):
            return unit
    return ""


def throughput(row: TrainingRow, unit: str) -> float | None:
    return row.tokens_per_s if unit == "tokens" else row.samples_per_s


def find_remarks(rows: Sequence[TrainingRow]) -> Iterator[str]:
    """Yield advice on the most important problems."""
    yield from _find_uncompared(rows)
    for row in rows:
        if row.data_wait_share >= _MUCH_WAITING:
            yield (
                f"{row.run} on {row.num_ranks} ranks waits for data {row.data_wait_share:.0%} of the time: "
                "use more workers for its loader, or cheaper samples"
            )
    for row in {row.run: row for row in rows}.values():
        if row.num_sessions > 1 and row.productive_share < 1 - _MAX_LOST_SHARE:
            yield (
                f"{row.run} was started {row.num_sessions} times, and {1 - row.productive_share:.0%} of its "
                "time went into starts, other work and repeated steps: saving more often may help"
            )


def _find_uncompared(rows: Sequence[TrainingRow]) -> Iterator[str]:
    unit = common_unit(rows)
    for row in rows if unit else ():
        if not _has_same_batch(row, rows[0], unit):
            yield (
                f"{row.run} on {row.num_ranks} ranks has no efficiency: its steps have "
                f"{_batch(row, unit):,.6g} {unit}, those of {rows[0].run} {_batch(rows[0], unit):,.6g}"
            )


def _compared(row: TrainingRow, first: TrainingRow, unit: str) -> TrainingRow:
    speed_up = (throughput(row, unit) or 0.0) / (throughput(first, unit) or 1.0)
    return replace(row, speed_up=speed_up, efficiency=speed_up * first.num_ranks / row.num_ranks)


def _make_row(
    run: str, size: int, sessions: Sequence[Session], kept: dict[int, float]
) -> TrainingRow:
    mine = [session for session in sessions if session.world_size == size]
    every = [stretch for session in mine for stretch in session.stretches]
    steady = [stretch for session in mine for stretch in _without_warm_up(session.stretches)]
    elapsed_s = sum(stretch.elapsed_s for stretch in steady)
    num_steps = sum(stretch.num_steps for stretch in steady)
    rated = [stretch for stretch in steady if stretch.mfu is not None]
    return TrainingRow(
        run=run,
        num_ranks=size,
        num_steps=round(sum(kept[id(stretch)] * stretch.num_steps for stretch in every)),
        num_sessions=len(sessions),
        tokens_per_s=sum(stretch.tokens for stretch in steady) / elapsed_s or None,
        samples_per_s=sum(stretch.samples for stretch in steady) / elapsed_s or None,
        tokens_per_step=sum(stretch.tokens for stretch in steady) / num_steps or None,
        samples_per_step=sum(stretch.samples for stretch in steady) / num_steps or None,
        step_p50_s=median(stretch.step_p50_s for stretch in steady),
        data_wait_share=sum(stretch.data_wait_s for stretch in steady) / elapsed_s,
        mfu=sum((s.mfu or 0.0) * s.elapsed_s for s in rated) / sum(s.elapsed_s for s in rated)
        if rated
        else None,
        memory_peak_bytes=max(stretch.memory_peak_bytes for stretch in every),
        wall_s=sessions[-1].ended_s - sessions[0].started_s,
        productive_s=sum(kept[id(s)] * s.elapsed_s for one in sessions for s in one.stretches),
    )


def _without_warm_up(stretches: Sequence[Stretch]) -> Sequence[Stretch]:
    """Drop a session's first stretch, which includes compilation and cold caches, if enough others remain."""
    return stretches[1:] if len(stretches) > 2 else stretches


def _kept_shares(sessions: Sequence[Session]) -> dict[int, float]:
    """Return the share of each stretch's steps that no later session repeated, by the stretch's id()."""
    shares: dict[int, float] = {}
    redone_from = float("inf")
    for session in reversed(sessions):
        for stretch in session.stretches:
            num_kept = min(max(redone_from - stretch.first_step, 0), stretch.num_steps)
            shares[id(stretch)] = num_kept / stretch.num_steps
        if session.stretches:
            redone_from = min(redone_from, session.stretches[0].first_step)
    return shares


def check_can_draw() -> None:
    """Raise SpecError if no chart can be drawn, before anything is read."""
    _import("matplotlib.figure")


def write_chart(rows: Sequence[TrainingRow], path: Path) -> None:
    """Draw rows in the order of `compare`, with the fewest ranks first, and write a PNG."""
    unit = common_unit(rows)
    if not unit:
        raise SpecError(
            "these runs cannot share a chart: some count tokens, some samples, some neither",
            hint="choose runs that count the same, and pass tokens or samples to the meters' step()",
        )
    figure = _import("matplotlib.figure").Figure(figsize=(10, 4.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    _draw_throughput(left, rows, unit)
    _draw_efficiency(right, rows)
    try:
        _import("matplotlib.backends.backend_agg").FigureCanvasAgg(figure).print_png(str(path))
    except OSError as error:
        raise SpecError(
            f"cannot write {path}: {error.strerror}", hint="choose another --png FILE"
        ) from error


def _draw_throughput(axes: Any, rows: Sequence[TrainingRow], unit: str) -> None:
    sizes = sorted({row.num_ranks for row in rows})
    one_rank = (throughput(rows[0], unit) or 0.0) / rows[0].num_ranks
    axes.plot(sizes, [one_rank * size for size in sizes], "--", color="0.6", label="ideal")
    for label, line in _lines(rows).items():
        rates = [throughput(row, unit) or 0.0 for row in line]
        axes.plot([row.num_ranks for row in line], rates, "o-", label=label)
        for row, rate in zip(line, rates, strict=True):
            shift = {"xytext": (6, -12), "textcoords": "offset points"}
            axes.annotate(f"{rate:,.4g}", (row.num_ranks, rate), fontsize="small", **shift)
    axes.set(title="Throughput", xlabel="ranks", ylabel=f"{unit} per second")
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    axes.set_xticks(sizes, [str(size) for size in sizes])
    axes.grid(visible=True, alpha=0.3)
    axes.margins(0.16)
    axes.legend(fontsize="small")


def _lines(rows: Sequence[TrainingRow]) -> dict[str, list[TrainingRow]]:
    """Group rows into lines of the chart: one line, unless some number of ranks occurs more than once."""
    if len({row.num_ranks for row in rows}) == len(rows):
        return {"measured": list(rows)}
    return {
        run: [row for row in rows if row.run == run] for run in dict.fromkeys(r.run for r in rows)
    }


def _draw_efficiency(axes: Any, rows: Sequence[TrainingRow]) -> None:
    bars: dict[str, list[float | None]] = {
        "throughput against ideal": [row.efficiency for row in rows],
        "productive time": [row.productive_share for row in rows],
        "MFU": [row.mfu for row in rows],
        "waiting for data": [row.data_wait_share for row in rows],
    }
    width = 0.8 / len(bars)
    for index, (label, shares) in enumerate(bars.items()):
        places = [place + (index - 1.5) * width for place in range(len(rows))]
        axes.bar(places, [100 * (share or 0.0) for share in shares], width, label=label)
    axes.axhline(100, linestyle="--", color="0.6")
    labels = [f"{row.run}\nranks: {row.num_ranks}" for row in rows]
    axes.set_xticks(list(range(len(rows))), labels, fontsize="small")
    axes.set(title="Shares", ylabel="percent", ylim=(0, None))
    axes.legend(fontsize="small", ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.16))


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            "--png needs matplotlib, which is not installed here",
            hint="run `pip install matplotlib`; the table and --json do not need it",
        ) from error

"""What trainings achieved: throughput and how it grows with ranks, waits, and how much time was of use.

Pure over the sessions that metrics_file reads; `windlass report` draws it. A row is a run on one number of
ranks, so a run that went on with fewer has two. Ideal is the throughput of the fewest ranks, times the
ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from windlass.observe.metrics_file import Session, Stretch

_MUCH_WAITING = 0.2
_MUCH_LOST = 0.1
_SAME_BATCH = 0.02  # a last step of an epoch may be smaller


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRow:
    """A run on one number of ranks."""

    run: str
    num_ranks: int
    num_steps: int  # each counted once, though it may have been done again
    num_sessions: int  # how often it was started
    tokens_per_s: float | None
    samples_per_s: float | None
    step_p50_s: float
    data_wait_share: float
    mfu: float | None
    memory_peak_bytes: float
    wall_s: float  # from the first start to the last line, with what was between sessions
    productive_s: float  # of steps that were not done again
    tokens_per_step: float | None = None
    samples_per_step: float | None = None
    speed_up: float | None = None  # against the row of the fewest ranks
    efficiency: float | None = None  # speed-up as a share of the ideal one

    @property
    def productive_share(self) -> float:
        """Effective training time: productive seconds of all seconds."""
        return min(self.productive_s / self.wall_s, 1.0) if self.wall_s > 0 else 0.0


def make_rows(run: str, sessions: Sequence[Session]) -> list[TrainingRow]:
    """One row for each number of ranks that the run had steps on."""
    kept = _kept_shares(sessions)
    sizes = sorted({session.world_size for session in sessions if session.stretches})
    return [_make_row(run, size, sessions, kept) for size in sizes]


def compare(rows: Sequence[TrainingRow]) -> list[TrainingRow]:
    """The same rows by ranks, with speed-up and efficiency where their throughputs have one unit."""
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
    """`tokens` or `samples`: what all rows can be compared by; empty where there is none."""
    for unit in ("tokens", "samples"):
        if rows and all(throughput(row, unit) for row in rows):
            return unit
    return ""


def throughput(row: TrainingRow, unit: str) -> float | None:
    return row.tokens_per_s if unit == "tokens" else row.samples_per_s


def find_remarks(rows: Sequence[TrainingRow]) -> Iterator[str]:
    """What to look at first, in words."""
    yield from _find_uncompared(rows)
    for row in rows:
        if row.data_wait_share >= _MUCH_WAITING:
            yield (
                f"{row.run} on {row.num_ranks} ranks waits for data {row.data_wait_share:.0%} of the time: "
                "give its loader more workers, or cheaper samples"
            )
    for row in {row.run: row for row in rows}.values():
        if row.num_sessions > 1 and row.productive_share < 1 - _MUCH_LOST:
            yield (
                f"{row.run} was started {row.num_sessions} times, and {1 - row.productive_share:.0%} of its "
                "time went into starts, other work and steps done again: checkpoints more often may help"
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
    """The first line of a session has compilation and cold caches in it: left out where others are enough."""
    return stretches[1:] if len(stretches) > 2 else stretches


def _kept_shares(sessions: Sequence[Session]) -> dict[int, float]:
    """Of each stretch the share of steps that no later session did again, by the stretch's id()."""
    shares: dict[int, float] = {}
    redone_from = float("inf")
    for session in reversed(sessions):
        for stretch in session.stretches:
            num_kept = min(max(redone_from - stretch.first_step, 0), stretch.num_steps)
            shares[id(stretch)] = num_kept / stretch.num_steps
        if session.stretches:
            redone_from = min(redone_from, session.stretches[0].first_step)
    return shares

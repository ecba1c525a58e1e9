"""Trackers by name, and `make_trackers`. A tracker's module is imported only when it is named.

The trainer and users' own loops call it. JSONL is always included.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.train.trackers.jsonl_tracker import JsonlTracker
from windlass.train.trackers.tracker import Tracker
from windlass.train.trackers.tracker_group import RunIds, TrackerGroup

TRACKERS = {
    "mlflow": "windlass.train.trackers.mlflow_tracker:make_mlflow",
    "tensorboard": "windlass.train.trackers.tensorboard_tracker:make_tensorboard",
    "wandb": "windlass.train.trackers.wandb_tracker:make_wandb",
}
JSONL = "jsonl"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackedRun:
    """Settings from which a tracker is created."""

    folder: Path  # folder of the run, <out>/<run>
    name: str
    run_id: str | None  # id from an earlier attempt
    attempt: int = 0
    world_size: int = 1
    tags: Mapping[str, str] = field(default_factory=dict)


def make_trackers(
    names: Sequence[str | Tracker] | str = (),
    *,
    folder: Path,
    run: str,
    run_ids: Mapping[str, str] | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    attempt: int | None = None,
) -> TrackerGroup:
    """Return the trackers of one run: JSONL, and the named ones. Raise if a library is missing.

    names: names in TRACKERS, as a list or separated by commas, or tracker objects.
    folder: folder of the run, <out>/<run>, which gets metrics.jsonl and trackers.json.
    run: name that trackers show for the run.
    run_ids: ids by tracker, from a checkpoint, to continue the same runs.
    rank, world_size, attempt: values of this process (default: from `get_context()`). Only rank 0 tracks.
    """
    if rank is None or world_size is None or attempt is None:
        from windlass.train.parallel.context import get_context

        context = get_context()
        rank = context.rank if rank is None else rank
        world_size = context.world_size if world_size is None else world_size
        attempt = context.attempt if attempt is None else attempt
    wanted = _split(names)
    _check([name for name in wanted if isinstance(name, str)])
    if rank != 0:
        return TrackerGroup([], run_ids=RunIds(Path(folder), known=dict(run_ids or {})))
    known = RunIds(Path(folder), known=dict(run_ids or {}))
    trackers: list[Tracker] = [JsonlTracker(Path(folder), attempt=attempt, world_size=world_size)]
    for name in wanted:
        if isinstance(name, str):
            tracked = TrackedRun(
                folder=Path(folder),
                name=run,
                run_id=known.get(name),
                attempt=attempt,
                world_size=world_size,
            )
            trackers.append(_make(name, tracked))
        else:
            trackers.append(name)
    return TrackerGroup(trackers, run_ids=known)


def _split(names: Sequence[str | Tracker] | str) -> list[str | Tracker]:
    parts: Sequence[str | Tracker] = names.split(",") if isinstance(names, str) else names
    wanted: list[str | Tracker] = []
    for part in parts:
        name = part.strip().lower() if isinstance(part, str) else part
        if name and name != JSONL and name not in wanted:
            wanted.append(name)
    return wanted


def _check(names: Sequence[str]) -> None:
    for name in names:
        if name not in TRACKERS:
            known = (JSONL, *TRACKERS)
            raise SpecError(
                f"unknown tracker {name!r}",
                hint=did_you_mean(name, known, f"available: {', '.join(known)}"),
            )


def _make(name: str, run: TrackedRun) -> Tracker:
    module, _, attribute = TRACKERS[name].partition(":")
    tracker: Tracker = getattr(importlib.import_module(module), attribute)(run)
    return tracker

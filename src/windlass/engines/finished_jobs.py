"""Finished jobs in a home: the results of their ranks, and the limit on their number.

A home keeps about a thousand jobs. The oldest ended ones are removed. A result that is missing in a
job's folder is read as an error. Used by the local engine and the engines on clusters.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from windlass import names
from windlass.plan.plan import Plan
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import read_omitted
from windlass.wire.results import ResultHeader, make_missing, read_results
from windlass.wire.status import JobStatus, Phase

logger = logging.getLogger(__name__)

MAX_JOBS = 1000
_ROOM = 50  # number of jobs to remove at a time, so that most submissions remove none
Result = tuple[ResultHeader, bytes]
_KEEP = "stay attached, or have the code write it to a volume (--volume)"


def forget_old_jobs(
    home: Path, has_ended: Callable[[Path], bool], *, max_jobs: int = MAX_JOBS, room: int = _ROOM
) -> list[str]:
    """Remove the oldest folders of ended jobs above a total of `max_jobs`. Return their ids."""
    folders = [
        Path(entry.path) for entry in os.scandir(home) if entry.is_dir(follow_symlinks=False)
    ]
    if len(folders) <= max_jobs:
        return []
    num_extra = len(folders) - max_jobs + room
    forgotten = []
    for folder in sorted(folders, key=_made_at_s)[:num_extra]:
        if has_ended(folder):
            shutil.rmtree(folder, ignore_errors=True)
            forgotten.append(folder.name)
    if forgotten:
        logger.warning(
            "%s has more than %s jobs: the %s oldest ended ones were removed",
            home, max_jobs, len(forgotten),
        )  # fmt: skip
    return forgotten


def _made_at_s(folder: Path) -> float:
    """Return the time of the plan, which is written once, or infinity for a folder without a plan."""
    try:
        return (folder / names.PLAN_FILE).stat().st_mtime
    except OSError:
        return float("inf")


def read_outcomes(
    folder: JobFolder, plan: Plan, status: JobStatus, *, with_values: bool
) -> list[Result | None]:
    """Return each rank's result of the last attempt, in rank order."""
    results = read_results(
        folder, attempt=status.attempt, num_ranks=status.num_ranks, with_values=with_values
    )
    if status.phase is not Phase.SUCCEEDED or not isinstance(plan.work, Function):
        return results
    return [
        make_missing(rank, status.attempt, _explain(folder, status, rank)) if left is None else left
        for rank, left in enumerate(results)
    ]


def _explain(folder: JobFolder, status: JobStatus, rank: int) -> str:
    path = f"{folder.attempt(status.attempt).name}/rank-{rank}.result"
    size = _read_omitted(folder).get(path)
    if size is not None:
        why = f"its {size} bytes were too large to be kept after its pod"
        return f"the result of rank {rank} is missing: {why}\n  hint: {_KEEP}"
    messages = [c.message for c in status.conditions if c.reason == names.REASON_RESULT_MISSING]
    why = "; ".join(messages) or "its file no longer exists here"
    return (
        f"the result of rank {rank} is missing: {why}\n  hint: run `windlass logs {status.job_id}`"
    )


def _read_omitted(folder: JobFolder) -> dict[str, int]:
    with contextlib.suppress(FileNotFoundError):
        return read_omitted((folder.path / names.OMITTED_FILE).read_bytes())
    return {}

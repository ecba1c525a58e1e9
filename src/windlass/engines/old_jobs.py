"""How many jobs a home keeps: of those that have ended, the newest thousand. Older ones are forgotten.

Folders of jobs stay until somebody removes them (`windlass rm`), and some never do. Called when a job is
submitted. Which job has ended is for the engine to say.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from windlass import names

logger = logging.getLogger(__name__)

MAX_JOBS = 1000
_ROOM = 50  # forgotten at a time: not one with each submit


def forget_old_jobs(
    home: Path, has_ended: Callable[[Path], bool], *, max_jobs: int = MAX_JOBS, room: int = _ROOM
) -> list[str]:
    """Remove the oldest folders of ended jobs when there are more than `max_jobs`; their ids."""
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
            "%s holds more than %s jobs: the %s oldest that have ended were forgotten",
            home, max_jobs, len(forgotten),
        )  # fmt: skip
    return forgotten


def _made_at_s(folder: Path) -> float:
    """By its plan, which is written once; a folder without one is no job, and comes last."""
    try:
        return (folder / names.PLAN_FILE).stat().st_mtime
    except OSError:
        return float("inf")

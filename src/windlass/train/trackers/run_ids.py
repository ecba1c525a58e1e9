"""`trackers.json` in the run's folder: each tracker's run id, so that a restart goes on with the same run.

Read by make_trackers, written by TrackerGroup whenever a tracker has started. Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
from pathlib import Path

logger = logging.getLogger(__name__)

RUN_IDS_FILE = "trackers.json"


class RunIds:
    """Run ids by tracker, in memory and in the folder; a file that cannot be written is only told."""

    def __init__(self, folder: Path, *, known: dict[str, str]) -> None:
        self._path = folder / RUN_IDS_FILE
        self._by_tracker = {**read_run_ids(folder), **known}
        self._lock = threading.Lock()

    def get(self, tracker: str) -> str | None:
        return self._by_tracker.get(tracker)

    def as_dict(self) -> dict[str, str]:
        with self._lock:
            return dict(self._by_tracker)

    def keep(self, tracker: str, run_id: str) -> None:
        with self._lock:
            self._by_tracker[tracker] = run_id
            temporary = self._path.with_suffix(f".{os.getpid()}.tmp")
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True)
                temporary.write_text(json.dumps(self._by_tracker, indent=1) + "\n")
                temporary.replace(self._path)
            except OSError as error:
                with contextlib.suppress(OSError):
                    temporary.unlink()
                logger.warning(
                    "%s cannot be written (%s): a restart without a checkpoint begins a new run",
                    self._path,
                    error,
                )


def read_run_ids(folder: Path) -> dict[str, str]:
    """What an earlier attempt left; nothing where there is no such file, or a broken one."""
    try:
        content = json.loads((folder / RUN_IDS_FILE).read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    return {str(name): run_id for name, run_id in content.items() if isinstance(run_id, str)}

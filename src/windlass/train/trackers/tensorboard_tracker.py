"""TensorBoard tracker: event files under `<out>/<run>/tensorboard`, by torch's own writer.

A restart writes another file into the same folder, which TensorBoard shows as the same run. Repeated steps
replace those of the lost attempt. Needs `tensorboard`, which is imported only when it is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windlass.train.trackers.tracker import flatten, import_library
from windlass.train.trackers.tracker_table import TrackedRun

FOLDER = "tensorboard"


def make_tensorboard(run: TrackedRun) -> TensorBoardTracker:
    return TensorBoardTracker(
        run,
        import_library("torch.utils.tensorboard", tracker="tensorboard", package="tensorboard"),
    )


class TensorBoardTracker:
    """Tracker that makes its writer at the first step. A restart replaces the steps from there on."""

    name = "tensorboard"
    every_s = 1.0

    def __init__(self, run: TrackedRun, library: Any) -> None:
        self.run_id: str | None = None
        self._run = run
        self._library = library
        self._writer: Any = None
        self._params: Mapping[str, Any] = {}

    def start(self, params: Mapping[str, Any]) -> None:
        self._params = params

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None:
        if self._writer is None:
            self._open(step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step, walltime=time_s)

    def _open(self, step: int) -> None:
        folder = self._run.folder / FOLDER
        is_restart = folder.is_dir() and any(folder.iterdir())
        self._writer = self._library.SummaryWriter(
            log_dir=str(folder), purge_step=step if is_restart else None
        )
        shown = json.dumps(flatten(self._params), indent=1, default=str)
        self._writer.add_text("params", f"```\n{shown}\n```", step)

    def flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def close(self, *, ok: bool = True) -> None:  # noqa: ARG002  # event files do not record how a run ended
        if self._writer is not None:
            self._writer.close()

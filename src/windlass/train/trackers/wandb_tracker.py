"""Weights & Biases tracker, by its library: one run over restarts, offline or online as set by WANDB_MODE.

The library itself reads its other variables (WANDB_PROJECT, WANDB_ENTITY, WANDB_API_KEY ...). Needs `wandb`,
which is imported only when it is named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from windlass.train.trackers.tracker import flatten, import_library
from windlass.train.trackers.tracker_table import TrackedRun

_PROJECT = "windlass"


def make_wandb(run: TrackedRun) -> WandbTracker:
    return WandbTracker(run, import_library("wandb", tracker="wandb", package="wandb"))


class WandbTracker:
    """Tracker that sends steps as `train_step`, because W&B's own step cannot decrease after a restart."""

    name = "wandb"
    every_s = 1.0

    def __init__(self, run: TrackedRun, library: Any) -> None:
        self.run_id = run.run_id
        self._tracked = run
        self._library = library
        self._run: Any = None

    def start(self, params: Mapping[str, Any]) -> None:
        self._tracked.folder.mkdir(parents=True, exist_ok=True)
        self._run = self._library.init(
            project=os.environ.get("WANDB_PROJECT", _PROJECT),
            name=self._tracked.name,
            id=self.run_id,
            resume="allow",
            dir=str(self._tracked.folder),
            config={**flatten(params), "world_size": self._tracked.world_size},
            settings=self._library.Settings(console="off", silent=True),
        )
        self.run_id = str(self._run.id)
        self._run.define_metric("train_step")
        self._run.define_metric("*", step_metric="train_step")

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None:
        self._run.log({**metrics, "train_step": step, "_timestamp": time_s})

    def flush(self) -> None:
        """Do nothing, because the library sends from its own process."""

    def close(self, *, ok: bool = True) -> None:
        if self._run is not None:
            self._run.finish(exit_code=0 if ok else 1)

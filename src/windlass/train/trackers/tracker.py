"""What a tracker is: one place that a run's numbers go to, and how its library is imported.

The contract between TrackerGroup and the trackers (JSONL, MLflow, TensorBoard, Weights & Biases, or a user's
own). All methods are called from one thread that is not the training's, so they may take their time. No
tracker imports another, and none is imported before somebody names it: on the main thread before anything
trains, since no thread may import while the training forks its data workers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from windlass.errors import SpecError


class Tracker(Protocol):
    """`log` remembers, `flush` sends: after an OSError they are called again, after any other error never.

    `run_id` is what a later attempt needs to go on with the same run; None where there is none, or not yet.
    """

    name: str
    run_id: str | None
    every_s: float  # how long records are collected before they are sent

    def start(self, params: Mapping[str, Any]) -> None: ...

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None: ...

    def flush(self) -> None: ...

    def close(self, *, ok: bool = True) -> None: ...


def flatten(params: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Nested settings as one level: `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, prefix=f"{name}."))
        else:
            flat[name] = value
    return flat


def import_library(module: str, *, tracker: str, package: str, otherwise: str = "") -> Any:
    """The module, or an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            f"tracker {tracker!r} needs {package}, which cannot be imported here: {error}",
            hint=f"pip install {package}{otherwise}; metrics.jsonl is written in any case",
        ) from error

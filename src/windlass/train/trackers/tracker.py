"""Interface of a tracker, which receives a run's metrics, and the import of its library.

TrackerGroup calls the trackers (JSONL, MLflow, TensorBoard, Weights & Biases, or a user's own) through it. A
thread separate from the training's calls all methods, so they may be slow. No tracker imports another.

Each is imported only when it is named, on the main thread before the training starts. No thread may import
while the training forks its data workers.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any, Protocol

from windlass.errors import SpecError


class Tracker(Protocol):
    """Receiver of metrics. `log` stores them and `flush` sends them.

    A method that raises OSError is called again. After any other error, the tracker is turned off. `run_id`
    identifies the run for a later attempt that continues it. It is None without an id.
    """

    name: str
    run_id: str | None
    every_s: float  # seconds to collect records before sending

    def start(self, params: Mapping[str, Any]) -> None: ...

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None: ...

    def flush(self) -> None: ...

    def close(self, *, ok: bool = True) -> None: ...


def flatten(params: Mapping[str, Any], *, prefix: str = "") -> dict[str, Any]:
    """Return nested settings as one level: `{"optimizer": {"lr": 1}}` -> `{"optimizer.lr": 1}`."""
    flat: dict[str, Any] = {}
    for key, value in params.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flat.update(flatten(value, prefix=f"{name}."))
        else:
            flat[name] = value
    return flat


def import_library(module: str, *, tracker: str, package: str, otherwise: str = "") -> Any:
    """Return the module, or raise an error with the command that installs it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise SpecError(
            f"tracker {tracker!r} needs {package}, which cannot be imported here: {error}",
            hint=f"run `pip install {package}`{otherwise}; metrics.jsonl is written in any case",
        ) from error

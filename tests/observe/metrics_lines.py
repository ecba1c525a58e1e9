"""Generator of metrics.jsonl files for runs with known times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class MetricsLines:
    """Writer of the lines of a training run, one for every 10 steps."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "metrics.jsonl"
        self.time_s = 1000.0
        self.facts: dict[str, Any] = {}

    def start(self, *, world_size: int, attempt: int = 0, after_s: float = 0.0) -> None:
        self.time_s += after_s
        self.facts = {"attempt": attempt, "world_size": world_size}
        self._write({"event": "start", "params": {}})

    def steps(self, *last_steps: int, elapsed_s: float = 10.0, **metrics: Any) -> None:
        for step in last_steps:
            self.time_s += elapsed_s
            timed = {"num_steps": 10, "elapsed_s": elapsed_s, "step_p50_s": elapsed_s / 10}
            self._write({"event": "metrics", "step": step, "metrics": {**timed, **metrics}})

    def end(self, *, ok: bool = True) -> None:
        self._write({"event": "end", "ok": ok})

    def _write(self, fields: dict[str, Any]) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps({"time": self.time_s, **self.facts, **fields}) + "\n")

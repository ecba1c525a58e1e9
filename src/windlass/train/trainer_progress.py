"""How far a training has come: its step, its best validation, and what a checkpoint must remember of both.

Plain data that travels as the facts of a checkpoint, so that a resumed run forgets neither its best value
nor its patience. Owned by `TorchTrainer`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any


@dataclass(slots=True, kw_only=True)
class TrainProgress:
    """Where a run stands after its last step; changed by the trainer alone."""

    step: int = 0  # optimizer steps done
    epoch: int = 0  # epochs done
    best: float | None = None
    best_step: int | None = None
    bad_validations: int = 0  # in a row
    num_skipped: int = 0  # steps left out for their gradients
    validation: dict[str, float] = field(default_factory=dict)  # the last one's

    def judge(self, value: float, *, mode: str) -> bool:
        """Note a validation; True if it is the best so far. What is not a number never is."""
        is_best = math.isfinite(value) and (
            self.best is None or (value < self.best if mode == "min" else value > self.best)
        )
        if is_best:
            self.best, self.best_step, self.bad_validations = value, self.step, 0
        else:
            self.bad_validations += 1
        return is_best

    def to_facts(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> TrainProgress:
        return cls(**{f.name: facts[f.name] for f in fields(cls) if f.name in facts})


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainResult:
    """What a training came to; the same on every rank."""

    step: int
    epoch: int
    loss: float | None  # mean over the steps of the last log line
    validation: dict[str, float]
    best: float | None
    best_step: int | None
    num_skipped: int
    resumed_from: int | None  # the step of the checkpoint that this process went on from
    folder: str  # <out>/<run>
    is_stopped_early: bool = False
    test: dict[str, float] = field(default_factory=dict)  # of test data that `execute` was given

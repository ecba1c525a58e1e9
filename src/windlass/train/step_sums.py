"""What is logged every few steps, summed up on the device: loss, norm, steps, steps left out.

Added to by `trainer_update`, taken by `trainer_log`. A checkpoint holds the sums too, so that a resumed
training logs the same means as one that was never stopped. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist

from windlass.train.context import Context
from windlass.train.late_values import LateValues

NUM_SUMS = 4


class StepSums:
    """The sums of this rank since they were last taken; their mean over all ranks is what counts."""

    def __init__(self, context: Context) -> None:
        options = {"dtype": torch.float64, "device": context.device}
        self._rank, self._world_size = context.rank, context.world_size
        self._sums = torch.zeros(NUM_SUMS, **options)
        self._one_step = torch.tensor([1.0, 0.0], **options)
        self._left_out = torch.tensor([0.0, 0.0, 0.0, 1.0], **options)
        self._metrics = torch.zeros(0, **options)
        self.metric_names: tuple[str, ...] = ()  # of train_step's own metrics

    def add(
        self, loss: torch.Tensor, norm: torch.Tensor, metrics: Mapping[str, torch.Tensor]
    ) -> None:
        """Count a step; one whose gradients were not finite is counted as left out."""
        done = torch.cat((torch.stack((loss, norm)), self._one_step))
        is_done = torch.isfinite(norm)
        self._sums += torch.where(is_done, done, self._left_out)
        if tuple(metrics) != self.metric_names:  # the first step; later ones have the same
            self.metric_names = tuple(metrics)
            self._metrics = torch.zeros(len(metrics), dtype=self._sums.dtype).to(self._sums.device)
        if metrics:
            self._metrics += torch.where(is_done, torch.stack(tuple(metrics.values())), 0.0)

    def take(self, own: Sequence[float] = ()) -> LateValues:
        """The sums since the last call over all ranks, then each rank's `own` numbers; read a step later.

        The sums are NUM_SUMS numbers, then one for each of `metric_names`.
        """
        table = torch.zeros(self._world_size, len(own), dtype=torch.float64)
        table[self._rank] = torch.tensor(own, dtype=torch.float64)
        rows = table.flatten().to(self._sums.device, non_blocking=True)
        sums = torch.cat((self._sums, self._metrics, rows))
        values = LateValues(sums, world_size=self._world_size)
        self._sums.zero_()
        self._metrics.zero_()
        return values

    def state_dict(self) -> dict[str, Any]:
        """The mean over all ranks, which all must ask for: it fits any number of them."""
        mean = torch.cat((self._sums, self._metrics)) / self._world_size
        if self._world_size > 1:
            dist.all_reduce(mean)
        names = {"metrics": list(self.metric_names)} if self.metric_names else {}
        return {"sums": mean, **names}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.metric_names = tuple(state.get("metrics", ()))
        sums = state["sums"].to(self._sums.device)
        self._sums.copy_(sums[:NUM_SUMS])
        self._metrics = sums[NUM_SUMS:].clone()

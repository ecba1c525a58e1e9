"""What is logged every few steps, summed up on the device: loss, norm, steps, steps left out.

Added to by `trainer_update`, taken by `trainer_log`. A checkpoint holds the sums too, so that a resumed
training logs the same means as one that was never stopped. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    def add(self, loss: torch.Tensor, norm: torch.Tensor) -> None:
        """Count a step; one whose gradients were not finite is counted as left out."""
        done = torch.cat((torch.stack((loss, norm)), self._one_step))
        self._sums += torch.where(torch.isfinite(norm), done, self._left_out)

    def take(self, own: Sequence[float] = ()) -> LateValues:
        """The sums since the last call over all ranks, then each rank's `own` numbers; read a step later."""
        table = torch.zeros(self._world_size, len(own), dtype=torch.float64)
        table[self._rank] = torch.tensor(own, dtype=torch.float64)
        rows = table.flatten().to(self._sums.device, non_blocking=True)
        values = LateValues(torch.cat((self._sums, rows)), world_size=self._world_size)
        self._sums.zero_()
        return values

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The mean over all ranks, which all must ask for: it fits any number of them."""
        mean = self._sums / self._world_size
        if self._world_size > 1:
            dist.all_reduce(mean)
        return {"sums": mean}

    def load_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        self._sums.copy_(state["sums"])

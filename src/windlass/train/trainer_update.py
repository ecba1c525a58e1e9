"""One optimizer step: micro-batches forward and backward, gradients over all ranks, clip, step.

Held by `TorchTrainer`. Every loss is a mean over its micro-batch; it is scaled by the share that the
micro-batch has of the whole step's samples (or tokens) over all ranks, so the gradient is that of one big
batch, whatever the number of ranks and micro-batches. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from windlass.train.context import Context
from windlass.train.gradients import clip_gradients, step_if_finite
from windlass.train.late_values import StepFence
from windlass.train.step_sums import StepSums
from windlass.train.strategies import LaidOutModel

Weigh = Callable[[Any], torch.Tensor]


class StepUpdate:
    """What a step needs."""

    def __init__(
        self,
        *,
        laid_out: LaidOutModel,
        optimizer: Optimizer,
        scheduler: LRScheduler,
        context: Context,
        sums: StepSums,
        clip: float | None,
        scaler: torch.amp.GradScaler | None = None,
    ) -> None:
        self._laid_out = laid_out
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._context = context
        self._clip = clip
        self._scaler = scaler
        self._fence = StepFence(context.device)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._sums = sums

    def run(
        self,
        batches: Sequence[tuple[Any, float]],
        global_samples: int,
        *,
        train_step: Callable[[Any, int], torch.Tensor],
        weigh: Weigh | None,
    ) -> None:
        """Make one step from (data, number of samples) of each micro-batch; weigh: None counts samples."""
        shares = self._shares(batches, global_samples, weigh)
        loss_sum: Any = 0.0
        for index, ((data, _), share) in enumerate(zip(batches, shares, strict=True)):
            with self._laid_out.accumulate(is_last=index == len(batches) - 1):
                with self._laid_out.autocast():
                    loss = train_step(data, index)
                loss = loss * share
                self._backward(loss, is_last=index == len(batches) - 1)
            told = loss.detach()
            if weigh is not None:  # the mean of a batch in which nothing counts is not a number
                told = torch.where(share > 0, told, 0.0)
            loss_sum = loss_sum + told
        norm = self._step_optimizer()
        self._scheduler.step()
        self._sums.add(loss_sum, norm)
        self._fence.step_queued()

    def _shares(
        self, batches: Sequence[tuple[Any, float]], global_samples: int, weigh: Weigh | None
    ) -> list[Any]:
        """Each micro-batch's share of the step, times the ranks over which gradients are averaged."""
        num_data_ranks = self._laid_out.shape.data_ranks
        if weigh is None:
            return [samples * num_data_ranks / global_samples for _, samples in batches]
        zero = torch.zeros((), device=self._context.device)
        weights = torch.stack(
            [weigh(data).to(zero) if samples else zero for data, samples in batches]
        )
        total = weights.sum()
        if self._context.world_size > 1:
            dist.all_reduce(total)  # ranks that share layers count several times, and average so
        return list(weights * (self._context.world_size / total.clamp(min=1e-12)))

    def _backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        del is_last  # for engines that must be told
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _step_optimizer(self) -> torch.Tensor:
        if self._scaler is None:
            norm = clip_gradients(self._parameters, self._clip)
            step_if_finite(self._optimizer, norm)
        else:  # which leaves steps out by itself, and lowers its scale
            self._scaler.unscale_(self._optimizer)
            norm = clip_gradients(self._parameters, self._clip)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

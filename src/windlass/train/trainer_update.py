"""One optimizer step: micro-batches forward and backward, gradients over all ranks, clip, step.

Held by `TorchTrainer`. Every loss is a mean over its micro-batch; it is scaled by the share that the
micro-batch has of the whole step's samples (or tokens) over all ranks, so the gradient is that of one big
batch, whatever the number of ranks and micro-batches. Nothing here waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from windlass.errors import SpecError
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
        scheduler: LRScheduler | None,
        context: Context,
        sums: StepSums,
        clip: float | None,
        scaler: torch.amp.GradScaler | None = None,
        of_loss: Sequence[nn.Parameter] = (),
    ) -> None:
        """Hold the parts of a step.

        scheduler: to step after each optimizer step; None if something else steps it.
        of_loss: parameters outside the model; their gradients are averaged here.
        """
        self._laid_out = laid_out
        self._optimizer = optimizer
        self._scheduler = scheduler
        self._context = context
        self._clip = clip
        self._scaler = scaler
        self._fence = StepFence(context.device)
        self._parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._of_loss = of_loss
        self._metric_names: list[str] | None = None
        self._sums = sums

    def run(
        self,
        batches: Sequence[tuple[Any, float]],
        global_samples: int,
        *,
        train_step: Callable[[Any, int], tuple[torch.Tensor, Mapping[str, Any]]],
        weigh: Weigh | None,
    ) -> None:
        """Make one step from (data, number of samples) of each micro-batch; weigh: None counts samples."""
        shares = self._shares(batches, global_samples, weigh)
        loss_sum: Any = 0.0
        metrics: dict[str, torch.Tensor] = {}
        for index, ((data, _), share) in enumerate(zip(batches, shares, strict=True)):
            with self._laid_out.accumulate(is_last=index == len(batches) - 1):
                with self._laid_out.autocast():
                    loss, returned = train_step(data, index)
                self._check_metrics(returned)
                self._add_metrics(metrics, returned, share)
                loss = loss * share
                self._backward(loss, is_last=index == len(batches) - 1)
            told = loss.detach()
            if weigh is not None:  # the mean of a batch in which nothing counts is not a number
                told = torch.where(share > 0, told, 0.0)
            loss_sum = loss_sum + told
        norm = self._step_optimizer()
        if self._scheduler is not None:
            self._scheduler.step()
        self._sums.add(loss_sum, norm, dict(sorted(metrics.items())))
        self._fence.step_queued()

    def _check_metrics(self, returned: Mapping[str, Any]) -> None:
        """Refuse metrics that are not those of the first batch, or not those of the other ranks."""
        names = sorted(returned)
        if self._metric_names is None:
            self._metric_names = names
            of_ranks = self._context.gather(names) if self._context.world_size > 1 else [names]
        else:
            of_ranks = [self._metric_names]
        other = next((one for one in of_ranks if one != names), None)
        if other is not None:
            raise SpecError(
                f"train_step returned the metrics {', '.join(names) or 'none'} here, and "
                f"{', '.join(other) or 'none'} before or on another rank",
                hint="return the same metrics for every batch",
            )

    def _add_metrics(
        self,
        sums: dict[str, torch.Tensor],
        returned: Mapping[str, Any],
        share: Any,
    ) -> None:
        """Add a micro-batch's metrics, weighted as its loss is."""
        options = {"dtype": torch.float64, "device": self._context.device}
        for name, value in returned.items():
            number = torch.as_tensor(value, **options).detach()
            if number.numel() != 1:
                raise SpecError(
                    f"train_step returned a metric {name!r} of {list(number.shape)}",
                    hint="return one number, the mean over the batch",
                )
            weight = torch.as_tensor(share, **options)
            weighted = torch.where(weight > 0, number.reshape(()) * weight, 0.0)
            sums[name] = sums[name] + weighted if name in sums else weighted

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

    def _average_of_loss(self) -> None:
        """Average the gradients of the loss's parameters, which no strategy has wrapped."""
        if self._context.world_size == 1:
            return
        for parameter in self._of_loss:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            dist.all_reduce(parameter.grad)
            parameter.grad /= self._context.world_size

    def _step_optimizer(self) -> torch.Tensor:
        self._average_of_loss()
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

"""One optimizer step: forward and backward passes, gradients over all ranks, clipping, step.

`TorchTrainer` uses it. Every loss is a mean over its micro-batch. It is scaled by the micro-batch's share of
the step's samples (or tokens) over all ranks. The gradient is then that of one big batch, whatever the number
of ranks and micro-batches.

No code here waits for the device, unless an optimizer cannot skip a step by itself. `StepSums` adds up the
metrics logged every few steps on the device and reads them one step later. A checkpoint contains the sums, so
that a resumed training logs the same means as an uninterrupted one. `StepFence` keeps the host at most one
step ahead of the device, which bounds memory and keeps ranks close to each other.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from windlass.errors import SpecError
from windlass.train.parallel.context import Context
from windlass.train.parallel.strategies import LaidOutModel

NUM_SUMS = 4
Weigh = Callable[[Any], torch.Tensor]


class LateValues:
    """Tensor of numbers that is summed over ranks and copied to the host asynchronously."""

    def __init__(self, values: torch.Tensor, *, world_size: int) -> None:
        self._values = values.detach().clone()
        self._work: Any = None
        self._event: Any = None
        if world_size > 1:
            self._work = dist.all_reduce(self._values, async_op=True)
        if self._values.is_cuda:
            if self._work is not None:
                self._work.wait()  # orders the streams without blocking the host
            on_host = torch.empty(self._values.shape, dtype=self._values.dtype, pin_memory=True)
            self._values = on_host.copy_(self._values, non_blocking=True)
            self._event = torch.cuda.Event()
            self._event.record()

    @property
    def is_ready(self) -> bool:
        """True if reading does not wait for the device. It may still wait for other ranks."""
        return self._event is None or bool(self._event.query())

    def read(self) -> list[float]:
        if self._event is not None:
            self._event.synchronize()
        elif self._work is not None:
            self._work.wait()
        return [float(value) for value in self._values.tolist()]


class StepFence:
    """Fence that waits after each step until the device has finished the previous one."""

    def __init__(self, device: torch.device) -> None:
        self._events: deque[Any] | None = deque() if device.type == "cuda" else None

    def step_queued(self) -> None:
        if self._events is None:
            return
        event = torch.cuda.Event()
        event.record()
        self._events.append(event)
        if len(self._events) > 1:
            self._events.popleft().synchronize()


class StepSums:
    """Sums of this rank since they were last taken. Their mean over all ranks is logged."""

    def __init__(self, context: Context) -> None:
        options = {"dtype": torch.float64, "device": context.device}
        self._rank, self._world_size = context.rank, context.world_size
        self._sums = torch.zeros(NUM_SUMS, **options)
        self._one_step = torch.tensor([1.0, 0.0], **options)
        self._left_out = torch.tensor([0.0, 0.0, 0.0, 1.0], **options)
        self._metrics = torch.zeros(0, **options)
        self.metric_names: tuple[str, ...] = ()  # metrics that train_step returns

    def add(
        self, loss: torch.Tensor, norm: torch.Tensor, metrics: Mapping[str, torch.Tensor]
    ) -> None:
        """Count a step. A step whose gradients are not finite counts as skipped."""
        done = torch.cat((torch.stack((loss, norm)), self._one_step))
        is_done = torch.isfinite(norm)
        self._sums += torch.where(is_done, done, self._left_out)
        if tuple(metrics) != self.metric_names:  # only in the first step
            self.metric_names = tuple(metrics)
            self._metrics = torch.zeros(len(metrics), dtype=self._sums.dtype).to(self._sums.device)
        if metrics:
            self._metrics += torch.where(is_done, torch.stack(tuple(metrics.values())), 0.0)

    def take(self, own: Sequence[float] = ()) -> LateValues:
        """Return the sums since the last call over all ranks, then each rank's `own` numbers.

        The caller reads them one step later. There are NUM_SUMS sums, then one for each of `metric_names`.
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
        """Return the mean over all ranks, which suits any world size. Every rank must call it."""
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


def clip_gradients(parameters: Iterable[nn.Parameter], limit: float | None) -> torch.Tensor:
    """Scale gradients to a total norm of at most `limit` and return their original norm over all shards."""
    with_grad = [p for p in parameters if p.grad is not None]
    groups: dict[Any, list[nn.Parameter]] = defaultdict(list)
    for parameter in with_grad:
        groups[getattr(parameter.grad, "device_mesh", None)].append(parameter)
    norms = [_norm([p.grad for p in group]) for group in groups.values()]
    if not norms:
        return torch.zeros(())
    norm = norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))
    if limit is not None and limit > 0:
        for group in groups.values():
            nn.utils.clip_grads_with_norm_(group, limit, norm)
    return norm


def _norm(gradients: list[Any]) -> torch.Tensor:
    norm = nn.utils.get_total_norm(gradients)
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm


def step_if_finite(optimizer: Optimizer, norm: torch.Tensor) -> None:
    """Step, unless a gradient is infinite or NaN. Weights and moments then stay unchanged.

    A fused optimizer on a GPU skips the step in its own kernel. Others step only after the norm was read.
    That is free on the CPU, and waits for the device elsewhere.
    """
    if norm.is_cuda and (flag := make_skip_flag(optimizer, norm)) is not None:
        step_unless(optimizer, flag)
    elif math.isfinite(norm.item()):
        optimizer.step()


def make_skip_flag(optimizer: Optimizer, norm: torch.Tensor) -> torch.Tensor | None:
    """Return a tensor that is 1 if the norm is not finite, or None if the optimizer cannot use one."""
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return None
    flag = (~torch.isfinite(norm)).to(torch.float32)
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    meshes = {getattr(parameter, "device_mesh", None) for parameter in parameters}
    if meshes == {None}:
        return flag
    if len(meshes) > 1:
        return None
    from torch.distributed.tensor import DTensor, Replicate

    mesh: Any = meshes.pop()
    return DTensor.from_local(flag, mesh, [Replicate()] * mesh.ndim, run_check=False)


def step_unless(optimizer: Optimizer, flag: torch.Tensor) -> None:
    """Step unless the flag, which only the device knows, is 1. Works like torch.amp.GradScaler."""
    state: Any = optimizer
    state.grad_scale, state.found_inf = None, flag
    try:
        optimizer.step()
    finally:
        del state.grad_scale, state.found_inf


class StepUpdate:
    """Parts of an optimizer step, and the code that runs it."""

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

        scheduler: steps after each optimizer step. None if other code steps it.
        of_loss: parameters outside the model. Their gradients are averaged here.
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
        """Run one step from (data, number of samples) of each micro-batch. `weigh` None counts samples."""
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
            logged = loss.detach()
            if weigh is not None:  # the mean of a batch with weight 0 is NaN
                logged = torch.where(share > 0, logged, 0.0)
            loss_sum = loss_sum + logged
        norm = self._step_optimizer()
        if self._scheduler is not None:
            self._scheduler.step()
        self._sums.add(loss_sum, norm, dict(sorted(metrics.items())))
        self._fence.step_queued()

    def _check_metrics(self, returned: Mapping[str, Any]) -> None:
        """Refuse metrics that differ from those of the first batch or of the other ranks."""
        names = sorted(returned)
        if self._metric_names is None:
            self._metric_names = names
            of_ranks = self._context.gather(names) if self._context.world_size > 1 else [names]
        else:
            of_ranks = [self._metric_names]
        other = next((one for one in of_ranks if one != names), None)
        if other is not None:
            raise SpecError(
                f"train_step returned the metrics {', '.join(names) or 'none'} here, but "
                f"{', '.join(other) or 'none'} before or on another rank",
                hint="return the same metrics for every batch",
            )

    def _add_metrics(
        self,
        sums: dict[str, torch.Tensor],
        returned: Mapping[str, Any],
        share: Any,
    ) -> None:
        """Add a micro-batch's metrics, weighted like its loss."""
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
        """Return each micro-batch's share of the step, times the number of data ranks that are averaged."""
        num_data_ranks = self._laid_out.shape.data_ranks
        if weigh is None:
            return [samples * num_data_ranks / global_samples for _, samples in batches]
        zero = torch.zeros((), device=self._context.device)
        weights = torch.stack(
            [weigh(data).to(zero) if samples else zero for data, samples in batches]
        )
        total = weights.sum()
        if self._context.world_size > 1:
            # Ranks that share layers add the same weights. `world_size` below cancels these duplicates.
            dist.all_reduce(total)
        return list(weights * (self._context.world_size / total.clamp(min=1e-12)))

    def _backward(self, loss: torch.Tensor, *, is_last: bool) -> None:
        del is_last  # used by engine subclasses
        (loss if self._scaler is None else self._scaler.scale(loss)).backward()

    def _average_of_loss(self) -> None:
        """Average the gradients of the loss's parameters, which are not part of the laid-out model."""
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
        else:  # the scaler skips steps by itself and lowers its scale
            self._scaler.unscale_(self._optimizer)
            norm = clip_gradients(self._parameters, self._clip)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._optimizer.zero_grad(set_to_none=True)
        return norm

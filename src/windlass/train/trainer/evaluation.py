"""Validation of every sample once over all ranks. Metrics are weighted by their samples or tokens.

The trainer and hand-written loops call it. Sums stay on the device, and ranks communicate once, at the end.
The caller's function turns a batch into metrics.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from windlass.errors import SpecError

Metrics = Mapping[str, Any]


def evaluate(
    batches: Iterable[tuple[Any, float]],
    step: Callable[[Any, int], Any],
    *,
    device: torch.device,
    weigh: Callable[[Any], torch.Tensor] | None = None,
) -> dict[str, float]:
    """Return the mean of each metric over all batches of all ranks. Call it on every rank.

    batches: (data, number of samples). A batch with 0 samples does not count. It keeps collectives matched.
    step: function of data and its number that returns the loss, (loss, metrics), or metrics, as batch means.
    weigh: function that returns the weight of a batch (default: its number of samples).
    """
    names: tuple[str, ...] = ()
    sums: Any = None
    with torch.no_grad():
        for index, (data, samples) in enumerate(batches):
            metrics = read_metrics(step(data, index))
            names = names or tuple(metrics)
            if tuple(metrics) != names:
                raise SpecError(
                    f"a validation step returned {', '.join(metrics)} after {', '.join(names)}",
                    hint="return the same metrics for every batch",
                )
            weight = weigh(data) if weigh is not None and samples else samples
            row = _row(metrics, weight, device) if samples else None
            zeros = torch.zeros(len(names) + 1, dtype=torch.float64, device=device)
            sums = (zeros if sums is None else sums) + (zeros if row is None else row)
    return _means(names, sums)


def read_metrics(returned: Any) -> dict[str, Any]:
    """Return a step's result as metrics by name, with the loss first."""
    if isinstance(returned, Mapping):
        return dict(returned)
    if isinstance(returned, tuple) and len(returned) == 2:
        loss, metrics = returned
        return {"loss": loss, **(metrics or {})}
    return {"loss": returned}


def _row(metrics: Metrics, weight: Any, device: torch.device) -> torch.Tensor:
    numbers = [
        torch.as_tensor(value, dtype=torch.float64, device=device) for value in metrics.values()
    ]
    scale = torch.as_tensor(weight, dtype=torch.float64, device=device)
    # The mean of a batch with weight 0 is NaN and must not count.
    weighted = [torch.where(scale > 0, number * scale, 0.0) for number in numbers]
    return torch.stack([*weighted, scale])


def _means(names: tuple[str, ...], sums: Any) -> dict[str, float]:
    if sums is None:
        return {}
    if dist.is_available() and dist.is_initialized():
        dist.all_reduce(sums)
    *totals, weight = sums.tolist()
    return (
        {name: total / weight for name, total in zip(names, totals, strict=True)} if weight else {}
    )


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model into eval mode, and then restore the mode of each module.

    A module that the user put into eval mode, such as a frozen BatchNorm, stays in it.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        model.train(modes[model])  # modules may override train(), so it is called first
        for module, was_training in modes.items():
            module.training = was_training

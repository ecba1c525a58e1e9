"""Validation: every sample once, over all ranks, each metric weighted by the samples or tokens behind it.

Called by the trainer, and by loops written by hand. Sums stay on the device; ranks meet once, at the end.
How a batch becomes numbers is the caller's function; which batches there are is the loader's.
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
    """The mean of each metric over all batches of all ranks; every rank must call it, and gets the same.

    batches: (data, number of samples); 0 samples: a batch that only keeps ranks in step.
    step: data and its number -> the loss, (loss, metrics), or metrics; all of them means over the batch.
    weigh: what a batch counts; its samples, unless given.
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
    """What a step returned, as metrics by name; the loss is first."""
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
    # the mean of a batch in which nothing counts is not a number, and counts nothing
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
    """Put the model into eval mode, and each module back into the mode that it had.

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

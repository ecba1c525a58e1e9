"""The parts of a training that can be given by name, as an object, or as a function that makes them.

Called by `TorchTrainer` between laying the model out and the first step. Losses are means over a batch:
the trainer weighs them. Optimizers that were made before the model was sharded are moved to its new
parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.train.adamw_8bit import ADAMW_8BIT, make_adamw_8bit
from windlass.train.schedules import make_schedule
from windlass.train.trainer_options import TrainerOptions

LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce": functional.binary_cross_entropy_with_logits,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adamw": AdamW, "adam": Adam, "sgd": SGD}


def make_model(model: Any) -> nn.Module:
    """The model itself, or what a function without arguments makes."""
    made = model if isinstance(model, nn.Module) else model() if callable(model) else None
    if not isinstance(made, nn.Module):
        raise SpecError(
            f"model is a {type(made if callable(model) else model).__name__}, which is no torch.nn.Module",
            hint="give model=, a function that makes it, or override create_model_loss_optimizer",
        )
    return made


def make_loss(loss: Any) -> Callable[..., Any] | None:
    """A loss by name, or as it was given; None: the model returns its own."""
    if not isinstance(loss, str):
        made: Callable[..., Any] | None = loss
        return made
    if loss not in LOSSES:
        raise SpecError(f"{loss!r} is not a loss", hint=did_you_mean(loss, tuple(LOSSES)))
    return LOSSES[loss]


def make_optimizer(choice: Any, model: nn.Module, options: TrainerOptions) -> Optimizer:
    """An optimizer by name or from a function of the parameters."""
    if isinstance(choice, type) and issubclass(choice, Optimizer):
        return choice(group_by_decay(model, options.weight_decay), lr=options.lr)
    if callable(choice) and not isinstance(choice, str):
        made = choice([p for p in model.parameters() if p.requires_grad])
        if not isinstance(made, Optimizer):
            raise SpecError(
                f"the function for optimizer= returned a {type(made).__name__}",
                hint="write it like `lambda params: torch.optim.AdamW(params, lr=1e-3)`",
            )
        return made
    if choice == ADAMW_8BIT:
        return make_adamw_8bit(group_by_decay(model, options.weight_decay), lr=options.lr)
    if choice not in OPTIMIZERS:
        raise SpecError(
            f"{choice!r} is not an optimizer",
            hint=did_you_mean(str(choice), (*OPTIMIZERS, ADAMW_8BIT)),
        )
    is_cuda = any(p.is_cuda for p in model.parameters())
    return OPTIMIZERS[choice](
        group_by_decay(model, options.weight_decay), lr=options.lr, fused=is_cuda or None
    )


def group_by_decay(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups: matrices decay; biases, norms and other vectors do not."""
    trained = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_scheduler(
    choice: Any, optimizer: Optimizer, options: TrainerOptions, *, total: int
) -> LRScheduler:
    """A scheduler by name, as it was given, or from a function of the optimizer."""
    if isinstance(choice, str):
        return make_schedule(optimizer, choice, warmup=options.warmup, total=total)
    made = choice if isinstance(choice, LRScheduler) else choice(optimizer)
    if isinstance(made, ReduceLROnPlateau):
        raise SpecError(
            "ReduceLROnPlateau waits for a metric, and schedulers step after each optimizer step here",
            hint="call its step() in a callback's on_validation, or take a schedule by steps",
        )
    if not isinstance(made, LRScheduler):
        raise SpecError(
            f"the function for scheduler= returned a {type(made).__name__}",
            hint="write it like `lambda optimizer: StepLR(optimizer, 100)`",
        )
    return made


def name_parameters(optimizer: Any, model: nn.Module) -> list[list[str]]:
    """The names of an optimizer's parameters in the model, group by group; none if it is not made yet."""
    if not isinstance(optimizer, Optimizer):
        return []
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = [group["params"] for group in optimizer.param_groups]
    if any(parameter not in names for group in groups for parameter in group):
        raise SpecError(
            "the optimizer has parameters that the model does not have",
            hint="give optimizer= as a function of the parameters",
        )
    return [[names[parameter] for parameter in group] for group in groups]


def move_optimizer(optimizer: Optimizer, names: list[list[str]], model: nn.Module) -> None:
    """Let an optimizer train the parameters that have these names now: sharding has replaced them."""
    parameters = dict(model.named_parameters())
    for group, members in zip(optimizer.param_groups, names, strict=True):
        group["params"] = [parameters[name] for name in members]


def move_to(data: Any, device: torch.device) -> Any:
    """A batch on a device: tensors in lists, tuples and dicts; anything else stays as it is."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: move_to(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move_to(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(move_to(value, device) for value in data)
    if isinstance(data, Mapping) and callable(to := getattr(data, "to", None)):
        return to(device)  # a BatchEncoding of transformers
    return data

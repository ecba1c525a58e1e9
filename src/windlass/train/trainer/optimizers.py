"""Losses, optimizers and learning-rate schedules, by name, as an object, or as a function that makes them.

`TorchTrainer` calls this between laying the model out and the first step. Losses are means over a batch, and
the trainer weights them. Optimizers made before the model was sharded are moved to its new parameters.
Schedules are pure functions of an optimizer step, all with a linear warm-up.

With torchao, AdamW's moments can take one byte per weight each instead of four, for models that barely fit.
Weights and gradients are unaffected, and small tensors keep their moments in float32.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.nn import functional
from torch.optim import LBFGS, SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, ReduceLROnPlateau

from windlass.errors import SpecError
from windlass.near_names import did_you_mean
from windlass.train.trainer.trainer_options import TrainerOptions

ADAMW_8BIT = "adamw8bit"
_DECAY_SHARE = 0.2  # share of the steps in which "wsd" decays, at its end
LOSSES: dict[str, Callable[..., Any]] = {
    "cross_entropy": functional.cross_entropy,
    "nll": functional.nll_loss,
    "mse": functional.mse_loss,
    "l1": functional.l1_loss,
    "smooth_l1": functional.smooth_l1_loss,
    "bce": functional.binary_cross_entropy_with_logits,
    "nllloss": functional.nll_loss,  # itwinai's names
    "bceloss": functional.binary_cross_entropy,
}
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {"adamw": AdamW, "adam": Adam, "sgd": SGD}


_OWN_STEPPERS = ("optimizer", "scheduler", "lr_scheduler")  # stepped by the trainer itself


def make_adamw_8bit(groups: list[dict[str, Any]], *, lr: float) -> Optimizer:
    """Return an optimizer for these parameter groups."""
    try:
        from torchao.optim import AdamW8bit
    except ImportError as error:
        raise SpecError(
            f"optimizer {ADAMW_8BIT!r} needs torchao, which is not installed here",
            hint="run `pip install torchao`",
        ) from error
    if any(isinstance(parameter, DTensor) for group in groups for parameter in group["params"]):
        raise SpecError(
            f"optimizer {ADAMW_8BIT!r} needs parameters that are whole on every rank",
            hint='use strategy "none" or "ddp"; with "fsdp", the moments of adamw are small already',
        )
    made: Optimizer = AdamW8bit(groups, lr=lr)
    return made


def _constant(_share: float) -> float:
    return 1.0


def _linear(share: float) -> float:
    return 1.0 - share


def _cosine(share: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * share))


def _wsd(share: float) -> float:
    return min(1.0, (1.0 - share) / _DECAY_SHARE)


SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": _constant,
    "linear": _linear,
    "cosine": _cosine,
    "wsd": _wsd,  # warm up, stay, decay
}


def rate_at(step: int, *, schedule: str, warmup: int, total: int, floor: float = 0.0) -> float:
    """Return the share of the full learning rate at a step, from 0 to 1. A warm-up starts above 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    share = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (1.0 - floor) * SCHEDULES[schedule](share)


def refresh_rates(scheduler: object) -> None:
    """Set the rates of a loaded schedule. The saved ones differ if the total number of steps changed."""
    if not isinstance(scheduler, NamedSchedule) or scheduler.is_settled:
        return
    for group, value in zip(scheduler.optimizer.param_groups, scheduler.rates(), strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
    scheduler.note_rates()


class NamedSchedule(LambdaLR):
    """Schedule by name that sets the rate after each step and refuses to overwrite other changes.

    A constant schedule leaves the rate alone after its warm-up, so that a callback may set it.
    """

    @property
    def is_settled(self) -> bool:
        """True if the schedule no longer sets rates."""
        settings = self._settings
        return settings["schedule"] == "constant" and self.last_epoch > settings["warmup"]

    @property
    def _settings(self) -> dict[str, Any]:
        rate: Any = self.lr_lambdas[0]
        settings: dict[str, Any] = rate.keywords
        return settings

    def rates(self) -> list[Any]:
        """Return the rate of each parameter group at this step."""
        return [
            base * rate(self.last_epoch)
            for base, rate in zip(self.base_lrs, self.lr_lambdas, strict=True)
        ]

    def note_rates(self) -> None:
        """Record the optimizer's current learning rates as the ones that this schedule set."""
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[Any]:
        """Return the rates to set now. Called by `step`."""
        if self.is_settled:
            return [group["lr"] for group in self.optimizer.param_groups]
        self._refuse_other_rates()
        return self.rates()

    def _refuse_other_rates(self) -> None:
        """Raise if the rate is not the one that this schedule set."""
        present = [group["lr"] for group in self.optimizer.param_groups]
        noted = getattr(self, "_last_lr", present)
        for now, last in zip(present, noted, strict=True):
            if isinstance(now, torch.Tensor):  # comparing it would wait for the device
                continue
            if now != last:
                name = self._settings["schedule"]
                raise SpecError(
                    f"the learning rate was set to {now:g}, but the schedule {name!r} would reset it "
                    f"from {last:g}",
                    hint='let only one of them set it: use scheduler="constant" without warm-up, or '
                    "pass the other as scheduler=",
                )


def make_schedule(optimizer: Optimizer, schedule: str, *, warmup: int, total: int) -> NamedSchedule:
    """Return a scheduler to step after each optimizer step."""
    if schedule not in SCHEDULES:
        raise SpecError(
            f"unknown schedule {schedule!r}", hint=did_you_mean(schedule, tuple(SCHEDULES))
        )
    return NamedSchedule(
        optimizer, functools.partial(rate_at, schedule=schedule, warmup=warmup, total=total)
    )


def make_model(model: Any) -> nn.Module:
    """Return the model itself, or the one that a function without arguments makes."""
    made = model if isinstance(model, nn.Module) else model() if callable(model) else None
    if not isinstance(made, nn.Module):
        raise SpecError(
            f"model must be a torch.nn.Module, not {type(made if callable(model) else model).__name__}",
            hint="pass model=, or a function that creates it, or override create_model_loss_optimizer",
        )
    return made


def make_loss(loss: Any) -> Callable[..., Any] | None:
    """Return a loss by name, or the given one. None means that the model returns its loss."""
    if not isinstance(loss, str):
        made: Callable[..., Any] | None = loss
        return made
    if loss not in LOSSES:
        raise SpecError(f"unknown loss {loss!r}", hint=did_you_mean(loss, tuple(LOSSES)))
    return LOSSES[loss]


def make_optimizer(
    choice: Any,
    model: nn.Module,
    options: TrainerOptions,
    *,
    of_loss: Sequence[nn.Parameter] = (),
) -> Optimizer:
    """Return an optimizer by name, class or function. It also trains the loss's own parameters."""
    groups = group_by_decay(model, options.weight_decay)
    groups += _group_by_decay(of_loss, options.weight_decay)
    if isinstance(choice, type) and issubclass(choice, Optimizer):
        _refuse_kind(choice)  # LBFGS itself would raise about the groups
        return choice(groups, lr=options.lr)
    if callable(choice) and not isinstance(choice, str):
        trained = [p for p in model.parameters() if p.requires_grad]
        if of_loss and any(isinstance(p, DTensor) for p in trained):
            raise SpecError(
                "optimizer= is a function, the model is sharded, and the loss has parameters",
                hint="pass optimizer= by name or as a class, so that both get their own groups",
            )
        made = choice([*trained, *of_loss])
        if not isinstance(made, Optimizer):
            raise SpecError(
                f"the function for optimizer= must return an optimizer, not a {type(made).__name__}",
                hint="write it like `lambda params: torch.optim.AdamW(params, lr=1e-3)`",
            )
        return made
    if choice == ADAMW_8BIT:
        return make_adamw_8bit(groups, lr=options.lr)
    if not isinstance(choice, str):
        raise SpecError(
            f"optimizer cannot be a {type(choice).__name__}",
            hint="pass a name, a class, a function of the parameters, or an optimizer; "
            "to use several, create them in create_model_loss_optimizer and step them in train_step",
        )
    if choice not in OPTIMIZERS:
        raise SpecError(
            f"unknown optimizer {choice!r}",
            hint=did_you_mean(str(choice), (*OPTIMIZERS, ADAMW_8BIT)),
        )
    is_cuda = any(p.is_cuda for p in model.parameters())
    return OPTIMIZERS[choice](groups, lr=options.lr, fused=is_cuda or None)


def check_optimizer(optimizer: Optimizer) -> None:
    """Refuse an optimizer that needs more in a step than the trainer provides."""
    _refuse_kind(type(optimizer))


def _refuse_kind(kind: type[Optimizer]) -> None:
    if issubclass(kind, LBFGS):
        raise SpecError(
            "LBFGS evaluates the loss several times in a step, but the trainer does so once",
            hint="use another optimizer such as adamw, or write your own loop with windlass.train",
        )


def own_parameters(loss: Any, model: nn.Module) -> list[nn.Parameter]:
    """Return the trainable parameters of a loss module that are not the model's."""
    if not isinstance(loss, nn.Module):
        return []
    models = set(model.parameters())
    return [p for p in loss.parameters() if p.requires_grad and p not in models]


def group_by_decay(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Return parameter groups. Matrices decay, but biases, norms and other vectors do not."""
    return _group_by_decay(model.parameters(), weight_decay)


def _group_by_decay(
    parameters: Iterable[nn.Parameter], weight_decay: float
) -> list[dict[str, Any]]:
    trained = [p for p in parameters if p.requires_grad]
    groups = [
        {"params": [p for p in trained if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.dim() < 2], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def make_scheduler(
    choice: Any, optimizer: Optimizer, options: TrainerOptions, *, total: int
) -> LRScheduler:
    """Return a scheduler by name, the given one, or one from a function of the optimizer."""
    if isinstance(choice, str):
        return make_schedule(optimizer, choice, warmup=options.warmup, total=total)
    if options.warmup:
        raise SpecError(
            f"warmup={options.warmup} cannot be combined with your own scheduler",
            hint="let the scheduler warm up (SequentialLR), and set warmup=0",
        )
    made = choice if isinstance(choice, LRScheduler) else choice(optimizer)
    if not isinstance(made, LRScheduler):
        raise SpecError(
            f"the function for scheduler= must return a scheduler, not a {type(made).__name__}",
            hint="write it like `lambda optimizer: StepLR(optimizer, 100)`",
        )
    return made


def check_plateau(
    scheduler: ReduceLROnPlateau, options: TrainerOptions, *, validates: bool
) -> None:
    """Refuse ReduceLROnPlateau without validations, or with a mode other than `best`."""
    if not validates:
        raise SpecError(
            "ReduceLROnPlateau requires validation, but none is configured",
            hint="pass validation data and validate_every, or use another scheduler",
        )
    if scheduler.mode != options.best:
        raise SpecError(
            f"ReduceLROnPlateau has mode={scheduler.mode!r}, but best is {options.best!r}",
            hint=f"both compare {options.best_metric!r}, so set them to the same value",
        )


def find_further(trainer: object) -> dict[str, Optimizer | LRScheduler]:
    """Return the optimizers and schedulers that a trainer has in addition to its own, by attribute."""
    further: dict[str, Optimizer | LRScheduler] = {}
    for name, value in vars(trainer).items():
        if name in _OWN_STEPPERS:
            continue
        if isinstance(value, Optimizer | LRScheduler):
            further[name] = value
        elif isinstance(value, list | tuple | dict):
            pairs = value.items() if isinstance(value, dict) else enumerate(value)
            further |= {
                f"{name}[{key}]": item
                for key, item in pairs
                if isinstance(item, Optimizer | LRScheduler)
            }
    return further


def find_steppers(trainer: Any) -> dict[str, Any]:
    """Return all optimizers and schedulers of a trainer, by attribute."""
    own = {name: getattr(trainer, name) for name in _OWN_STEPPERS}
    own = {name: value for name, value in own.items() if value is not None}
    return {**own, **find_further(trainer)}


def check_further(
    further: Mapping[str, Any], optimizer: Optimizer, model: nn.Module, loss: Any
) -> None:
    """Refuse further optimizers whose parameters are unknown, or trained by the trainer too."""
    own = {p for group in optimizer.param_groups for p in group["params"]}
    for attribute, other in further.items():
        if not isinstance(other, Optimizer):
            continue
        names = name_parameters(other, model, loss, called=f"self.{attribute}")
        members = (p for group in other.param_groups for p in group["params"])
        shared = [
            name for name, p in zip(itertools.chain(*names), members, strict=True) if p in own
        ]
        if shared:
            raise SpecError(
                f"self.{attribute} trains {shared[0]}, and so does the trainer's own optimizer",
                hint="also set self.optimizer, to one with only the other parameters",
            )


def _named(model: nn.Module, loss: Any) -> dict[str, nn.Parameter]:
    named = dict(model.named_parameters())
    if isinstance(loss, nn.Module):
        known = set(named.values())
        named |= {f"~loss.{n}": p for n, p in loss.named_parameters() if p not in known}
    return named


def name_parameters(
    optimizer: Any, model: nn.Module, loss: Any = None, *, called: str = "the optimizer"
) -> list[list[str]]:
    """Return the names of an optimizer's parameters, by group, or an empty list if it is not made yet."""
    if not isinstance(optimizer, Optimizer):
        return []
    names = {parameter: name for name, parameter in _named(model, loss).items()}
    groups = [group["params"] for group in optimizer.param_groups]
    if any(parameter not in names for group in groups for parameter in group):
        raise SpecError(
            f"{called} has parameters that are not in the model",
            hint="pass optimizer= as a function of the parameters",
        )
    return [[names[parameter] for parameter in group] for group in groups]


def move_optimizer(
    optimizer: Optimizer, names: list[list[str]], model: nn.Module, loss: Any = None
) -> None:
    """Point an optimizer to the parameters that have these names now, after sharding replaced them."""
    parameters = _named(model, loss)
    for group, members in zip(optimizer.param_groups, names, strict=True):
        group["params"] = [parameters[name] for name in members]


def move_to(data: Any, device: torch.device) -> Any:
    """Move all tensors of a batch, also those in lists, tuples and dicts, to a device. Return the batch."""
    if isinstance(data, torch.Tensor):
        return data if data.device == device else data.to(device, non_blocking=True)
    if isinstance(data, dict):
        return {key: move_to(value, device) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(move_to(value, device) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(move_to(value, device) for value in data)
    if isinstance(data, Mapping) and callable(to := getattr(data, "to", None)):
        return to(device)  # such as transformers' BatchEncoding
    return data

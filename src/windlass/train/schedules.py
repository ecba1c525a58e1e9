"""Learning-rate schedules by name, all of them per optimizer step, with a linear warm-up.

Pure functions of a step, and one that makes torch's LambdaLR of them. Called by `trainer_parts`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

_DECAY_SHARE = 0.2  # of all steps, at the end of "wsd"


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
    """The share of the full learning rate at a step, from 0 to 1; the first step of a warm-up is not 0."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    share = min(1.0, (step - warmup) / max(1, total - warmup))
    return floor + (1.0 - floor) * SCHEDULES[schedule](share)


def refresh_rates(scheduler: object) -> None:
    """Set the rates of a loaded schedule as it is now: with other steps in all, they are not those saved."""
    if not isinstance(scheduler, LambdaLR):
        return
    for group, base, rate in zip(
        scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
    ):
        if not (isinstance(rate, functools.partial) and rate.func is rate_at):
            continue
        value = base * rate(scheduler.last_epoch)
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value


def make_schedule(optimizer: Optimizer, schedule: str, *, warmup: int, total: int) -> LambdaLR:
    """A scheduler to step after each optimizer step."""
    if schedule not in SCHEDULES:
        raise SpecError(
            f"{schedule!r} is not a schedule", hint=did_you_mean(schedule, tuple(SCHEDULES))
        )
    return LambdaLR(
        optimizer, functools.partial(rate_at, schedule=schedule, warmup=warmup, total=total)
    )

"""Learning-rate schedules by name, all of them per optimizer step, with a linear warm-up.

Pure functions of a step, and one that makes torch's LambdaLR of them. Called by `trainer_parts`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

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
    if not isinstance(scheduler, NamedSchedule) or scheduler.is_settled:
        return
    for group, value in zip(scheduler.optimizer.param_groups, scheduler.rates(), strict=True):
        if isinstance(group["lr"], torch.Tensor):
            group["lr"].fill_(value)
        else:
            group["lr"] = value
    scheduler.note_rates()


class NamedSchedule(LambdaLR):
    """Schedule by name: sets the rate after each step and refuses to undo somebody else's change.

    A constant schedule leaves the rate alone once its warm-up is over, so a callback may set it.
    """

    @property
    def is_settled(self) -> bool:
        """True if the schedule sets no more rates."""
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
        """Remember the optimizer's rates as those that this schedule has set."""
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    def get_lr(self) -> list[Any]:
        """Return the rates to set now; called by `step`."""
        if self.is_settled:
            return [group["lr"] for group in self.optimizer.param_groups]
        self._refuse_other_rates()
        return self.rates()

    def _refuse_other_rates(self) -> None:
        """Raise if the rate is not the one that this schedule has set."""
        present = [group["lr"] for group in self.optimizer.param_groups]
        noted = getattr(self, "_last_lr", present)
        for now, last in zip(present, noted, strict=True):
            if isinstance(now, torch.Tensor):  # comparing it would wait for the device
                continue
            if now != last:
                name = self._settings["schedule"]
                raise SpecError(
                    f"the learning rate was set to {now:g}, and the schedule {name!r} would set it "
                    f"back: it was {last:g}",
                    hint='let one of them set it: take scheduler="constant" without warm-up, or '
                    "give the other as scheduler=",
                )


def make_schedule(optimizer: Optimizer, schedule: str, *, warmup: int, total: int) -> NamedSchedule:
    """Return a scheduler to step after each optimizer step."""
    if schedule not in SCHEDULES:
        raise SpecError(
            f"{schedule!r} is not a schedule", hint=did_you_mean(schedule, tuple(SCHEDULES))
        )
    return NamedSchedule(
        optimizer, functools.partial(rate_at, schedule=schedule, warmup=warmup, total=total)
    )

"""Modules that a subclass keeps as attributes, besides the model and the loss.

The trainer neither trains nor saves them. That is right for a frozen teacher, and wrong for a loss with
parameters or a running mean of the weights, so `OwnModules` warns of those two. Called by `trainer_save`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch import nn
from torch.optim import Optimizer

from windlass.train.trainer_parts import find_further

if TYPE_CHECKING:
    from windlass.train.trainer import TorchTrainer

logger = logging.getLogger(__name__)


class OwnModules:
    """Modules among a trainer's attributes that are no part of its model or loss."""

    def __init__(self, trainer: TorchTrainer) -> None:
        self._trainer = trainer
        self._warned: set[tuple[str, str]] = set()
        self._changes = {name: _count_changes(module) for name, module in self._modules()}

    def warn(self) -> None:
        """Warn once of each module that gets gradients in vain, or changes without being saved."""
        for name, module in self._modules():
            if _count_changes(module) != self._changes.setdefault(name, _count_changes(module)):
                self._warn_once(
                    name,
                    "changes while it trains, and checkpoints do not have it",
                    "keep it in a callback with state_dict and load_state_dict",
                )
            if self._is_trained_in_vain(module):
                self._warn_once(
                    name,
                    "has parameters that get gradients, and no optimizer trains them",
                    "set self.loss to it or make it part of the model; "
                    "requires_grad_(False) if it is not to learn",
                )

    def _modules(self) -> Iterator[tuple[str, nn.Module]]:
        trainer = self._trainer
        known = {
            id(part)
            for module in (trainer.model, trainer.loss)
            if isinstance(module, nn.Module)
            for part in module.modules()
        }
        for name, value in list(vars(trainer).items()):
            if isinstance(value, nn.Module) and id(value) not in known:
                yield name, value

    def _is_trained_in_vain(self, module: nn.Module) -> bool:
        optimizers = [self._trainer.optimizer, *find_further(self._trainer).values()]
        trained = {
            parameter
            for optimizer in optimizers
            if isinstance(optimizer, Optimizer)
            for group in optimizer.param_groups
            for parameter in group["params"]
        }
        return any(p.grad is not None and p not in trained for p in module.parameters())

    def _warn_once(self, name: str, what: str, hint: str) -> None:
        if (name, what) not in self._warned and self._trainer.context.is_main:
            kind = type(self._trainer).__name__
            logger.warning("%s: self.%s %s; hint: %s", kind, name, what, hint)
        self._warned.add((name, what))


def _count_changes(module: nn.Module) -> int:
    """Return how often the tensors of a module's state were written to."""
    tensors = [*module.parameters(), *module.buffers()]
    return sum(tensor._version for tensor in tensors if not tensor.is_inference())  # noqa: SLF001

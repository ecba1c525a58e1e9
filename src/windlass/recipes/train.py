"""Smoke test of distributed training: a small classifier on synthetic data, done in seconds.

    windlass run -m windlass.recipes.train --nodes 2 --procs 2 -- --epochs 2
    torchrun --nproc-per-node 2 -m windlass.recipes.train --epochs 2
    python -m windlass.recipes.train

Prints `[DDP] [TRAIN] [VALID] [EPOCH] [DONE]` lines that are easy to grep. Flags, with defaults: --epochs 2
--batch 256 (samples per step over all ranks) --samples 4096 --features 128 --classes 4 --lr 3e-3 --seed 42.
Every other setting of `windlass.train.TorchTrainer` works too, see --help. If MLFLOW_TRACKING_URI is set,
metrics also go there, unless --trackers overrides it.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from windlass.errors import SpecError
from windlass.recipes.recipe_flags import (
    RUN_ID,
    check_writable,
    end_with_help,
    exit_on_error,
    guess_out,
    guess_trackers,
    rename_flags,
)
from windlass.train.trainer.torch_trainer import TorchTrainer
from windlass.train.trainer.trainer_options import TrainerOptions

_NUM_HIDDEN = 128
_VALIDATION_SHARE = 8  # one in eight samples


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeOptions(TrainerOptions):
    """Settings of the smoke test."""

    epochs: int | None = 2
    batch: int = 256
    samples: int = 4096
    features: int = 128
    classes: int = 4
    lr: float = 3e-3
    scheduler: str = "cosine"
    checkpoint_every: int | str | None = 0  # no checkpoints, because it is done in seconds
    run: str = "smoke"


class SmokeTrainer(TorchTrainer):
    """Trainer of a classifier that finds the center around which a point was drawn."""

    options_type = SmokeOptions
    options: SmokeOptions

    def create_model_loss_optimizer(self) -> None:
        """Build a classifier with one hidden layer. It starts with the same weights on every rank."""
        options = self.options
        self.model = nn.Sequential(
            nn.Linear(options.features, _NUM_HIDDEN),
            nn.ReLU(),
            nn.Linear(_NUM_HIDDEN, options.classes),
        )
        self.loss = nn.functional.cross_entropy

    def create_dataloaders(self) -> None:
        """Create training and validation data. The trainer makes the loaders of both."""
        self.train_dataset, self.validation_dataset = make_data(self.options)
        TorchTrainer.create_dataloaders(self)


def make_data(options: SmokeOptions) -> tuple[TensorDataset, TensorDataset]:
    """Return points around one center per class. They depend only on the seed, so all ranks agree."""
    if min(options.samples, options.features, options.classes) < 1:
        raise SpecError(
            "samples, features and classes must be at least 1",
            hint="omit them to use the defaults",
        )
    rng = torch.Generator().manual_seed(options.seed)
    centres = torch.randn(options.classes, options.features, generator=rng)
    num_points = options.samples + max(1, options.samples // _VALIDATION_SHARE)
    classes = torch.randint(0, options.classes, (num_points,), generator=rng)
    points = centres[classes] + 2 * torch.randn(num_points, options.features, generator=rng)
    cut = options.samples
    return TensorDataset(points[:cut], classes[:cut]), TensorDataset(points[cut:], classes[cut:])


def accuracy(output: Any, target: Any) -> Any:
    """Return the share of points whose class is predicted correctly."""
    return (output.argmax(dim=-1) == target).float().mean()


@exit_on_error
def main(words: list[str] | None = None) -> None:
    words = sys.argv[1:] if words is None else words
    end_with_help(words, __doc__, SmokeOptions)
    flags = rename_flags(words, RUN_ID)
    guesses = {**guess_out(os.environ), **guess_trackers(os.environ)}
    trainer = SmokeTrainer(flags, metrics={"accuracy": accuracy}, **guesses)
    if "://" not in (trainer.options.out or ""):
        check_writable(Path(trainer.options.out or trainer.context.out, trainer.options.run))
    trainer.fit()
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

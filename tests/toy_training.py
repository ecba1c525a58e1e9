"""A small classification that a trainer learns in a few steps, and a callback that remembers it."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from windlass.train import Callback, TorchTrainer


def make_data(num_samples: int = 40, *, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 6, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


class Recorder(Callback):
    """Remembers every event of a training."""

    def __init__(self) -> None:
        self.losses: dict[int, float] = {}
        self.skipped: dict[int, float] = {}
        self.sample_ids: list[tuple[int, ...]] = []
        self.checkpoints: list[int] = []
        self.validations: list[dict[str, float]] = []
        self.epochs: list[int] = []

    def on_log(self, trainer, step, metrics):
        self.losses[step] = metrics["loss"]
        self.skipped[step] = metrics["skipped_steps"]

    def on_step(self, trainer, step):
        self.sample_ids.append(step.sample_ids)

    def on_checkpoint(self, trainer, step):
        self.checkpoints.append(step)

    def on_validation(self, trainer, metrics):
        self.validations.append(dict(metrics))

    def on_epoch(self, trainer, epoch):
        self.epochs.append(epoch)


def make_trainer(out, *, recorder: Recorder | None = None, kind=TorchTrainer, **settings):
    return kind(
        **{
            "model": make_net,
            "data": make_data(),
            "loss": "cross_entropy",
            "epochs": 2,
            "batch": 8,
            "lr": 1e-2,
            "log_every": 1,
            "out": str(out),
            "async_checkpoints": False,
            "callbacks": [recorder or Recorder()],
            **settings,
        }
    )

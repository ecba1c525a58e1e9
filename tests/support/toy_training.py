"""Toy models and their training: states for checkpoint tests, and a trainer that learns in a few steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import TensorDataset

from windlass.train import Callback, TorchTrainer


def make_state(*, seed: int = 0, width: int = 8) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.Linear(width, 2))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2)
    return {"model": model, "optimizer": optimizer, "schedule": schedule}


def train(state: dict[str, Any], *, num_steps: int) -> None:
    for _ in range(num_steps):
        state["optimizer"].zero_grad()
        state["model"](torch.randn(6, 4)).square().mean().backward()
        state["optimizer"].step()
        state["schedule"].step()


def fill(state: dict[str, Any], value: float) -> dict[str, Any]:
    """Set all parameters to one value."""
    with torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.fill_(value)
    return state


def same_state(one: dict[str, Any], other: dict[str, Any]) -> bool:
    first, second = (
        (
            state["model"].state_dict(),
            list(state["optimizer"].state_dict()["state"].values()),
            state["schedule"].state_dict(),
        )
        for state in (one, other)
    )
    return (
        all(torch.equal(value, second[0][name]) for name, value in first[0].items())
        and all(
            torch.equal(value, theirs[name])
            for ours, theirs in zip(first[1], second[1], strict=True)
            for name, value in ours.items()
        )
        and first[2] == second[2]
    )


def make_data(num_samples: int = 40, *, seed: int = 1) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_samples, 6, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


def make_net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))


class Recorder(Callback):
    """Callback that records every event of a training run."""

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

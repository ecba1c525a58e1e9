"""Training runs with several ranks of one job, and records of each rank. Runs in the ranks."""

from __future__ import annotations

import math
import os
import signal
import time
from pathlib import Path
from typing import ClassVar

import torch
from resume_phases import TinyNet, make_data
from torch import nn
from torch.utils.data import TensorDataset

from windlass.errors import SpecError
from windlass.train import Callback, Preempted, TorchTrainer, get_context


class Seen(Callback):
    """Record of one rank. Calls `act` after each step."""

    def __init__(self, act=None) -> None:
        self.losses, self.checkpoints, self.validations, self.act = {}, [], [], act
        self.spread = {}

    def on_log(self, trainer, step, metrics):
        self.losses[step] = metrics["loss"]
        self.spread = {name: value for name, value in metrics.items() if "rank" in name}

    def on_step(self, trainer, step):
        if self.act is not None:
            self.act(trainer, step.index + 1)

    def on_checkpoint(self, trainer, step):
        self.checkpoints.append(step)

    def on_validation(self, trainer, metrics):
        self.validations.append(dict(metrics))


def train(folder: str, case: str, *, act=None, kind=TorchTrainer, **settings):
    seen = Seen(act)
    trainer = kind(
        **{
            "model": TinyNet,
            "data": make_data(),
            "validation": TensorDataset(*make_data()[:13]),
            "metrics": {
                "share": lambda output, target: (output.argmax(1) == target).float().mean()
            },
            "loss": "cross_entropy",
            "epochs": 2,
            "batch": 8,
            "lr": 3e-2,
            "log_every": 1,
            "out": str(Path(folder) / case),
            "async_checkpoints": False,
            "callbacks": [seen],
            **settings,
        }
    )
    try:
        end = trainer.fit().step
    except Preempted as error:
        end = f"preempted {error.code} after {trainer.progress.step}"
        trainer.context.preemption._deadline_s = None
    return {
        "losses": seen.losses,
        "checkpoints": seen.checkpoints,
        "validations": seen.validations,
        "end": end,
        "num_skipped": trainer.progress.num_skipped,
        "spread": seen.spread,
    }


class SpikyTrainer(TorchTrainer):
    """Trainer in which rank 1's loss is infinite in one step."""

    def train_step(self, batch, batch_idx):
        loss = super().train_step(batch, batch_idx)
        is_spike = self.progress.step == 4 and self.context.rank == 1
        return loss * math.inf if is_spike else loss


class WeightedTrainer(TorchTrainer):
    """Trainer that weights samples by their class number."""

    def batch_weight(self, batch):
        return (batch[1] + 1).sum()

    def train_step(self, batch, batch_idx):
        inputs, target = batch
        losses = nn.functional.cross_entropy(self.model(inputs), target, reduction="none")
        return (losses * (target + 1)).sum() / (target + 1).sum()

    validation_step = train_step


class SplitNet(nn.Module):
    """Two layers whose matrices are split over ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(6, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.down(torch.tanh(self.up(x)))

    def tensor_parallel_plan(self):
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel

        return {"up": ColwiseParallel(), "down": RowwiseParallel()}


class NormedNet(nn.Sequential):
    """Model with running statistics, which each rank computes from its own samples."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))


class HalfUsedNet(TinyNet):
    """Model with a layer that no loss depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Linear(2, 2)


class HalfUsedTrainer(TorchTrainer):
    ddp_options: ClassVar[dict[str, bool]] = {"find_unused_parameters": True}


class ScaledLoss(nn.Module):
    """Loss with a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, target):
        return nn.functional.cross_entropy(output * self.scale, target)


class UnorderedNet(nn.Module):
    """Model whose layers are registered out of order of use, and fill more than one bucket."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.first, self.middle = (
            nn.Linear(768, 3),
            nn.Linear(6, 512),
            nn.Linear(512, 768),
        )

    def forward(self, x):
        return self.last(torch.tanh(self.middle(torch.tanh(self.first(x)))))


class TwoOptimizers(TorchTrainer):
    def create_model_loss_optimizer(self):
        super().create_model_loss_optimizer()
        self.optimizer = torch.optim.SGD(self.model.first.parameters(), lr=1e-2)
        self.other = torch.optim.SGD(self.model.last.parameters(), lr=1e-2)


def resume_on_ranks(folder: str) -> dict:
    """Compare the weights after each step with those of a training run that was stopped."""
    torch.set_num_threads(1)
    settings = {"model": UnorderedNet, "checkpoint_epochs": False, "validation": None}
    held = {}

    def hold(trainer, step):
        held[step] = [p.tolist() for p in trainer.laid_out.model.last.parameters()]

    train(folder, "whole", act=hold, **settings)
    whole, held = held, {}
    train(folder, "cut", steps=5, **settings)
    train(folder, "cut", act=hold, **settings)
    try:
        train(folder, "two", kind=TwoOptimizers, **settings)
        refused = ""
    except SpecError as error:
        refused = str(error)
    later = {step: weights for step, weights in whole.items() if step > 5}
    return {"is_same": held == later, "steps": sorted(held), "refused": refused}


def train_normed(folder: str, strategy: str) -> dict:
    """Train once without a stop and once with a stop within an epoch."""
    case = f"normed {strategy}"
    settings = {"model": NormedNet, "strategy": strategy}
    whole = train(folder, f"{case} whole", **settings)
    train(folder, f"{case} resumed", steps=9, **settings)
    resumed = train(folder, f"{case} resumed", **settings)
    return {"whole": whole["validations"], "resumed": resumed["validations"]}


def make_sgd(model):
    return torch.optim.SGD(model.parameters(), lr=3e-2, momentum=0.9)


def run_alone_or_together(folder: str) -> dict:
    """Run the cases whose results must be equal at every world size."""
    torch.set_num_threads(1)
    cases = {
        "ddp": {"strategy": "ddp"},
        "fsdp": {"strategy": "fsdp"},
        "ddp accumulated": {"strategy": "ddp", "micro_batch": 3},
        "fsdp accumulated": {"strategy": "fsdp", "micro_batch": 3},
        "weighted": {"strategy": "ddp", "kind": WeightedTrainer},
        "weighted fsdp": {"strategy": "fsdp", "kind": WeightedTrainer, "micro_batch": 1},
        "recomputed": {"strategy": "fsdp", "checkpoint_activations": True},
        "learned loss": {"strategy": "ddp", "loss": ScaledLoss()},
        "learned loss fsdp": {"strategy": "fsdp", "loss": ScaledLoss(), "micro_batch": 3},
        "split": {
            "strategy": f"tp={get_context().world_size}",
            "model": SplitNet,
        },
    }
    world = f"world-{get_context().world_size}"
    return {case: train(f"{folder}/{world}", case, **settings) for case, settings in cases.items()}


def run_together(folder: str) -> dict:
    """Run the cases in which ranks must agree."""
    context = get_context()

    def notice(trainer, step):
        if step == 3 and context.rank == 1:
            context.preemption.notice()

    def stop(trainer, step):
        if step == 2 and context.rank == 1:
            trainer.stop()

    def take_time(trainer, step):
        time.sleep(0.05)

    return {
        **run_alone_or_together(folder),
        "preempted": train(folder, "preempted", act=notice, checkpoint_epochs=False),
        "stopped": train(folder, "stopped", act=stop, checkpoint_epochs=False, validation=None),
        "timed": train(
            folder,
            "timed",
            act=take_time,
            checkpoint_every="200ms",
            checkpoint_epochs=False,
            validation=None,
        ),
        "normed ddp": train_normed(folder, "ddp"),
        "normed fsdp": train_normed(folder, "fsdp"),
        "half used": train(folder, "half used", kind=HalfUsedTrainer, model=HalfUsedNet),
        "spiky": train(folder, "spiky", kind=SpikyTrainer),
        "low": train(folder, "low", strategy="fsdp", precision="bf16"),
        "meshes": {shape: context.mesh(shape).mesh_dim_names for shape in ("ddp", "fsdp", "tp=2")},
    }


def run_deepspeed(folder: str) -> dict:
    """Run each ZeRO stage without and with a stop, and ddp for comparison."""
    torch.set_num_threads(1)
    seen = {"ddp": train(folder, "ddp", strategy="ddp")}
    for stage in (1, 2, 3):
        settings = {"strategy": "deepspeed", "zero_stage": stage, "checkpoint_epochs": False}
        seen[f"whole-{stage}"] = train(folder, f"whole-{stage}", **settings)
        cut = f"cut-{stage}"
        seen[f"begun-{stage}"] = train(folder, cut, steps=5, **settings)
        seen[f"resumed-{stage}"] = train(folder, cut, **settings)
    return seen


def start_over(folder: str) -> list[int]:
    """Return the steps at which attempts began with resume=False.

    The first attempt is killed after its checkpoint of step 4.
    """
    marks = Path(folder) / "begun"

    class Mark(Callback):
        def on_start(self, trainer):
            with marks.open("a") as file:
                file.write(f"{trainer.progress.step}\n")

        def on_step(self, trainer, step):
            if (trainer.context.attempt, step.index) == (0, 5):
                os.kill(os.getpid(), signal.SIGKILL)

    settings = {"checkpoint_every": 4, "checkpoint_epochs": False, "resume": False}
    train(folder, "over", callbacks=[Mark()], **settings)
    return [int(line) for line in marks.read_text().splitlines()]

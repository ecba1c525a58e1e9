"""Training runs that are killed at given steps, one after another in one job.

This module runs inside the job's ranks.

A phase is one training run of one case. It lasts until the run ends or a rank kills itself after a step.
Each kill ends an attempt, and the next attempt runs the next phase. Each rank writes its record of a step
immediately.
"""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import TensorDataset

from windlass.train import Callback, TorchTrainer, get_context

NUM_SAMPLES = 44  # with a batch of 8, epochs have steps of 8, 8, 8, 8, 8 and 4
BATCH = 8
EPOCHS = 3
STEPS = 18


class TinyNet(nn.Module):
    """Model with blocks, as fsdp needs them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x)


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(NUM_SAMPLES, 6, generator=generator)
    return TensorDataset(inputs, inputs[:, :3].argmax(1))


class Recorder(Callback):
    """Callback that writes each step's samples and loss, and kills one rank after one step."""

    def __init__(self, path: Path, kill_step: int | None, is_victim: bool) -> None:
        self._file = path.open("a")
        self._kill_step, self._is_victim = kill_step, is_victim

    def _write(self, **values) -> None:
        self._file.write(json.dumps(values) + "\n")
        self._file.flush()

    def on_start(self, trainer) -> None:
        self._write(start=trainer.progress.step, best=trainer.progress.best)

    def on_log(self, trainer, step, metrics) -> None:
        self._write(step=step, loss=metrics["loss"], lr=metrics["lr"])

    def on_validation(self, trainer, metrics) -> None:
        self._write(step=trainer.progress.step, validation=metrics["loss"])

    def on_step(self, trainer, step) -> None:
        self._write(step=step.index + 1, sample_ids=step.sample_ids)
        if self._is_victim and step.index + 1 == self._kill_step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_phases(folder: str, phases: list[dict]) -> int:
    """Run the phases that no earlier attempt has begun, and return the number of attempts."""
    torch.set_num_threads(1)
    context = get_context()
    for number, phase in enumerate(phases):
        mark = Path(folder) / f"begun-{context.world_size}-{number}"
        if context.broadcast(mark.exists()):
            continue
        if context.is_main:
            mark.touch()
        out = Path(folder) / phase["case"]
        out.mkdir(exist_ok=True)
        name = f"world-{context.world_size}-phase-{number:02}-rank-{context.rank}.jsonl"
        is_victim = context.rank == phase.get("victim")
        recorder = Recorder(out / name, phase.get("kill_step"), is_victim)
        TorchTrainer(
            model=TinyNet,
            data=make_data(),
            validation=TensorDataset(*make_data()[:13]),
            loss="cross_entropy",
            strategy=phase["strategy"],
            epochs=EPOCHS,
            batch=BATCH,
            micro_batch=phase.get("micro_batch"),
            scheduler="cosine",
            warmup=3,
            weight_decay=0.1,
            lr=3e-2,
            checkpoint_every=3,
            async_checkpoints=phase.get("is_async", False),
            log_every=1,
            out=str(out),
            callbacks=[recorder],
        ).fit()
    return context.attempt

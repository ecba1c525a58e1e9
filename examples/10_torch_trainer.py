"""A training that stops on two ranks, resumes on one, and ends with the result of an uninterrupted run.

python examples/10_torch_trainer.py
"""

import tempfile

import torch
from torch import nn
from torch.utils.data import TensorDataset

import windlass as wl
from windlass.train import Callback, TorchTrainer


def make_spirals(num_samples, seed):
    rng = torch.Generator().manual_seed(seed)
    arm = torch.randint(0, 3, (num_samples,), generator=rng)
    radius = torch.rand(num_samples, generator=rng)
    angle = 4 * radius + 2.1 * arm + 0.1 * torch.randn(num_samples, generator=rng)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], 1), arm)


class StopAt(Callback):
    def __init__(self, step):
        self.step = step

    def on_step(self, trainer, step):
        if step.index == self.step:
            trainer.stop()


def train(out, stop_at):
    return TorchTrainer(
        model=lambda: nn.Sequential(
            nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
        ),
        data=make_spirals(1500, seed=1),
        validation=make_spirals(301, seed=2),  # an odd number: every sample counts once
        loss="cross_entropy",
        metrics={"accuracy": lambda output, arm: (output.argmax(1) == arm).float().mean()},
        epochs=8,
        batch=50,  # over all ranks
        lr=3e-2,
        scheduler="cosine",
        out=out,
        callbacks=[StopAt(stop_at)],
    ).fit()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for run, procs, stop_at in (("whole", 1, None), ("cut", 2, 100), ("cut", 1, None)):
            result = wl.run(train, (f"{folder}/{run}", stop_at), procs=procs, quiet=True)[0]
            print(
                f"{run:5}  {procs} ranks, steps {result.resumed_from or 0} to {result.step}:"
                f" loss {result.loss:.4f}, {result.validation['accuracy']:.1%} accuracy"
            )

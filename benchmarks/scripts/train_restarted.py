"""TorchTrainer script whose recovery is measured: steps, a checkpoint, a kill, the first step after it."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from windlass.train import Callback, TorchTrainer

OUT = Path(os.environ["BENCH_OUT"])


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 4))


class Stamps(Callback):
    """Writes the time of this attempt's first step, in the first attempt once a checkpoint exists."""

    is_written = False
    steps_after = 0

    def on_step(self, trainer, step):
        now_s = time.time()
        attempt, rank = trainer.context.attempt, trainer.context.rank
        is_ready = attempt > 0 or (OUT / "run/latest").exists()
        if not self.is_written and is_ready:
            beside = OUT / f".{attempt}-{rank}"
            beside.write_text(f"{os.getpid()} {now_s!r} {trainer.progress.step}")
            beside.rename(OUT / f"attempt-{attempt}-rank-{rank}")
            self.is_written = True
        if attempt == 0:
            time.sleep(0.01)  # steps until the benchmark kills it
        else:
            self.steps_after += 1
            if self.steps_after == 5:
                trainer.stop()


torch.set_num_threads(1)
data = torch.randn(4096, 64)
TorchTrainer(
    model=make_model,
    data=TensorDataset(data, data[:, :4].argmax(1)),
    loss="cross_entropy",
    steps=10**6,
    batch=32,
    checkpoint_every=5,
    out=str(OUT),
    callbacks=[Stamps()],
).fit()
dist.destroy_process_group()

"""Script whose steps are measured: blocks of TorchTrainer and of a hand-written loop, in turn.

Both run in one process. They train the same model on the same data with clipping, a schedule, and a loss that
is read every ten steps. The hand-written loop reads its batches from torch's DataLoader. The script supports
any number of ranks.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

from windlass.train import Callback, TorchTrainer, get_context

WIDTH, FEATURES, CLASSES, BATCH = 512, 128, 10, 256
BLOCK_STEPS, NUM_BLOCKS = (int(number) for number in sys.argv[1:3])
LOG_EVERY = 10


def make_model() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES))


def make_data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(16384, FEATURES, generator=generator)
    return TensorDataset(inputs, inputs[:, :CLASSES].argmax(1))


class LoopByHand:
    """Hand-written training loop."""

    def __init__(self, context) -> None:
        self.model = make_model()
        is_many = context.world_size > 1
        self.module = DistributedDataParallel(self.model) if is_many else self.model
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda _: 1.0)
        self.data = make_data()
        self.sampler = DistributedSampler(self.data) if is_many else None
        self.per_rank = BATCH // context.world_size
        self.batches = self._read()
        self.losses, self.step = [], 0

    def _read(self):
        for epoch in range(10**6):
            if self.sampler is not None:
                self.sampler.set_epoch(epoch)
            yield from DataLoader(
                self.data,
                batch_size=self.per_rank,
                sampler=self.sampler,
                shuffle=self.sampler is None,
                drop_last=True,
            )

    def run(self, num_steps: int) -> None:
        for _ in range(num_steps):
            inputs, target = next(self.batches)
            loss = nn.functional.cross_entropy(self.module(inputs), target)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            self.step += 1
            if self.step % LOG_EVERY == 0:
                self.losses.append(loss.item())


class Turns(Callback):
    """Callback that times each block of the trainer, then runs and times a block by hand."""

    def __init__(self, by_hand: LoopByHand) -> None:
        self.by_hand, self.pairs, self.began_s = by_hand, [], None

    def on_step(self, trainer, step) -> None:
        if (step.index + 1) % BLOCK_STEPS:
            return
        ended_s = time.perf_counter()
        self.by_hand.run(BLOCK_STEPS)
        by_hand_s = time.perf_counter() - ended_s
        if self.began_s is not None:  # the first block of each side is a warm-up
            self.pairs.append((ended_s - self.began_s, by_hand_s))
        self.began_s = time.perf_counter()


def main() -> None:
    context = get_context()
    torch.set_num_threads(1)
    turns = Turns(LoopByHand(context))
    with tempfile.TemporaryDirectory() as folder:
        TorchTrainer(
            model=make_model,
            data=make_data(),
            loss="cross_entropy",
            optimizer=lambda params: torch.optim.AdamW(params, lr=1e-3),
            steps=BLOCK_STEPS * (NUM_BLOCKS + 1),
            batch=BATCH,
            log_every=LOG_EVERY,
            checkpoint_every=0,
            out=folder,
            callbacks=[turns],
        ).fit()
    if context.is_main:
        Path(os.environ["BENCH_OUT"], "pairs.json").write_text(json.dumps(turns.pairs))
    if dist.is_initialized():
        dist.destroy_process_group()


main()

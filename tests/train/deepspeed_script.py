"""Script as in DeepSpeed's guide: it opens the process group and trains with DeepSpeed's engine."""

from __future__ import annotations

import argparse

import deepspeed
import torch
from torch import nn

CONFIG = {
    "train_batch_size": 8,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "zero_optimization": {"stage": 1},
}

parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
parser.add_argument("--local_rank", type=int, default=-1)
args = parser.parse_args()
torch.manual_seed(0)
torch.set_num_threads(1)
deepspeed.init_distributed(dist_backend="gloo")
model = nn.Linear(4, 1)
engine, *_ = deepspeed.initialize(
    args=args, model=model, model_parameters=model.parameters(), config=CONFIG
)
rows = torch.randn(8, 4, generator=torch.Generator().manual_seed(1))
rows = rows[4 * engine.global_rank :][:4]
losses = []
for _ in range(3):
    loss = engine(rows).square().mean()
    engine.backward(loss)
    engine.step()
    losses.append(loss.item())
if losses[-1] < losses[0]:
    print(f"rank {engine.global_rank} of {engine.world_size} learned in {len(losses)} steps")

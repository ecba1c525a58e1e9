"""A DDP training of pairs of ranks: importable, so it travels by reference, with torch imported ahead."""

from __future__ import annotations

import os


def train_in_pairs(folder: str) -> int:
    """A DDP model in a group of two, freed as this returns; each pair of ranks is a group of its own."""
    import torch
    import torch.distributed as dist

    rank = int(os.environ["RANK"])
    place = f"file://{folder}/group-{rank // 2}"
    dist.init_process_group("gloo", init_method=place, rank=rank % 2, world_size=2)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()
    return rank

"""A DDP training of pairs of ranks.

Importable, so it is pickled by reference, and torch is imported in advance.
"""

from __future__ import annotations

import os


def train_in_pairs(folder: str) -> int:
    """Train a DDP model in a group of two ranks. Each pair of ranks is a separate group.

    The model is freed when this function returns.
    """
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

"""Functions for the tests of TrainerClient. They are defined in functions, so they are sent by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Shells and here-documents would change this text. SDKs that send source as text did.
AWKWARD = "$5 ${HOME} $(echo pwned) `date` \"double\" 'single' a\\nb %s {x}"


def make_sum() -> Callable[..., Any]:
    """Return a function that sums a value of each rank. Its result shows that everything arrived intact."""
    from math import factorial  # a global that is in no module of a node

    bias = {"closure": AWKWARD}

    def add_ranks(more: int = 0) -> tuple[float, int, str]:
        import torch
        import torch.distributed as dist

        dist.init_process_group("gloo")
        total = torch.tensor([float(dist.get_rank() + more)])
        dist.all_reduce(total)
        world = dist.get_world_size()
        print(f"rank {dist.get_rank()} of {world}: {bias['closure']}")
        dist.destroy_process_group()
        return total.item() + factorial(3), world, bias["closure"]

    return add_ranks


def make_failure() -> Callable[..., Any]:
    """Return a function that raises on the last rank while the others wait for it."""

    def fail_on_last(message: str = "boom") -> None:
        import os

        import torch.distributed as dist

        dist.init_process_group("gloo")
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            raise KeyError(message)
        dist.barrier()

    return fail_on_last


def make_wait() -> Callable[..., Any]:
    """Return a function that waits until a file exists."""

    def wait_for_file(path: str) -> str:
        import time
        from pathlib import Path

        print("waiting")
        while not Path(path).exists():
            time.sleep(0.05)
        return "went on"

    return wait_for_file

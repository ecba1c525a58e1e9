"""Functions for the tests of TrainerClient. Made in functions, they travel by value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# Shells, and here-documents above all, would change it; SDKs that send source as text did.
AWKWARD = "$5 ${HOME} $(echo pwned) `date` \"double\" 'single' a\\nb %s {x}"


def make_sum() -> Callable[..., Any]:
    """All ranks add up theirs; what is returned shows that all of it arrived."""
    from math import factorial  # a global of no module that a node has

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
    """The last rank raises, the others wait for it."""

    def fail_on_last(message: str = "boom") -> None:
        import os

        import torch.distributed as dist

        dist.init_process_group("gloo")
        if int(os.environ["RANK"]) == int(os.environ["WORLD_SIZE"]) - 1:
            raise KeyError(message)
        dist.barrier()

    return fail_on_last


def make_wait() -> Callable[..., Any]:
    """Waits until somebody makes a file, or for ever."""

    def wait_for_file(path: str) -> str:
        import time
        from pathlib import Path

        print("waiting")
        while not Path(path).exists():
            time.sleep(0.05)
        return "went on"

    return wait_for_file

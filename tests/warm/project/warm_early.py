"""Module that sets a variable before it imports torch, as a script may."""

from __future__ import annotations

import os

os.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"

import torch
import torch.distributed as dist


def read_level() -> str:
    return dist.get_debug_level().name


def all_reduce() -> int:
    dist.init_process_group("gloo")
    total = torch.tensor([1])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return int(total)


class Level:
    def read(self) -> str:
        return read_level()

"""Training programs of these tests, which only all-reduce. Copied into a project of its own."""

from __future__ import annotations

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

import windlass as wl


def reduce() -> int:
    """Return the sum of rank + 1 over all ranks, computed by an all-reduce."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mine = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(mine)
    print("reduced to", int(mine), flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    return int(mine)


def reduce_on() -> None:
    """All-reduce until the job is stopped. Each all-reduce is a step."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    print("store at", os.environ["MASTER_PORT"], flush=True)
    step = 0
    while True:
        step += 1
        dist.all_reduce(torch.ones(1))
        wl.report(step=step)
        time.sleep(0.1)

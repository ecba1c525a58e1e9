"""What the jobs of these tests do. Copied into a project of its own; it knows nothing of the tests."""

from __future__ import annotations

import os
import signal
import sys
from datetime import timedelta


def reduce() -> int:
    """The sum over all ranks of rank + 1, by an all-reduce."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    mine = torch.tensor([dist.get_rank() + 1])
    dist.all_reduce(mine)
    print("reduced to", int(mine), flush=True)
    print("to stderr", file=sys.stderr, flush=True)
    dist.destroy_process_group()
    return int(mine)


def reduce_on() -> None:
    """All-reduce again and again until somebody ends it; each one is a step."""
    import time

    import torch
    import torch.distributed as dist

    import windlass as wl

    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    print("store at", os.environ["MASTER_PORT"], flush=True)
    step = 0
    while True:
        step += 1
        dist.all_reduce(torch.ones(1))
        wl.report(step=step)
        time.sleep(0.1)


def stay() -> None:
    print("up", flush=True)
    signal.pause()


def hello() -> str:
    print("hello from", os.environ["RANK"], flush=True)
    return "hello"


def look() -> dict[str, object]:
    """What a rank can see of its agent: the Secret's files, and both processes' environments."""
    agent = "/proc/1"
    with open(f"{agent}/environ", "rb") as environ, open(f"{agent}/cmdline", "rb") as words:
        started_with = [environ.read().decode(), words.read().decode()]
    return {
        "files": sorted(
            name for name in os.listdir("/windlass/secret") if not name.startswith("..")
        ),
        "texts": [*started_with, *(f"{name}={value}" for name, value in os.environ.items())],
    }

"""Pairs of ranks that end right after an exchange, while torch's threads still hold the group.

    python late_exchange.py plain|held|context|unnamed|handler NUM_PAIRS

Prints the exit codes of the ranks and their counts as JSON.

- "plain": torch alone, without destroying the group.
- "held": the group is destroyed, but an object still references it, as a DDP model does.
- "context": joined by `get_context`.
- "unnamed": the same, with a torch that does not name its threads.
- "handler": an exit handler, registered before the group was joined, makes the last exchange.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import threading
from collections import Counter

import torch
import torch.distributed as dist

from windlass import exchange_threads
from windlass.train import get_context

held: list[object] = []


def run_rank(rank: int, port: int, how: str) -> None:
    """Exchange twice with the other rank, then exit."""
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": 2, "RANK": rank}
    os.environ.update({name: str(value) for name, value in place.items()})
    if how == "handler":
        atexit.register(exchange)
    if how == "unnamed":
        exchange_threads._NAMED_SINCE = (1000, 0)
    if how in ("plain", "held"):
        dist.init_process_group("gloo")
    else:
        get_context()
    exchange()
    put_others_last()
    exchange()
    if how == "held":
        held.append(dist.group.WORLD)
        dist.destroy_process_group()


def exchange() -> float:
    total = torch.ones(1)
    dist.all_reduce(total)
    return total.item()


def put_others_last() -> None:
    """Pin every thread to one core, and run all others only when this one is idle."""
    core = {min(os.sched_getaffinity(0))}
    for task in map(int, os.listdir("/proc/self/task")):
        os.sched_setaffinity(task, core)
        if task != threading.get_native_id():
            os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))


def run_pair(how: str) -> list[int]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pids = []
    for rank in range(2):
        pids.append(os.fork())
        if not pids[-1]:
            run_rank(rank, port, how)
            sys.exit()
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


if __name__ == "__main__":
    codes = Counter(code for _ in range(int(sys.argv[2])) for code in run_pair(sys.argv[1]))
    print(json.dumps(codes))

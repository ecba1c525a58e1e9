"""The project whose code is edited and called: made on disk, one line of it changed, its answers checked.

Stdlib only: every contestant's own Python imports this. The functions that ranks run are the text in TRAIN;
what is edited is the one line of STEP, a module that TRAIN imports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TRAIN_NAME, STEP_NAME = "bench_train", "bench_step"
TRAIN = '''\
"""What ranks run. Torch is imported by the one function that needs it."""

import os
import time

import bench_step


def empty():
    return None


def read_all(data):
    """Every page of an array is read; what came out."""
    return int(data[::4096].sum())


def running():
    """When a rank of this code was running."""
    return {"rank": int(os.environ["RANK"]), "number": bench_step.NUMBER, "at": time.time()}


def first_all_reduce():
    """A process group and one all-reduce; when it was done."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    value = torch.tensor([rank + 1.0])
    dist.all_reduce(value)
    at = time.time()
    if value.item() != size * (size + 1) / 2:
        raise ValueError(f"rank {rank}: the sum of 1..{size} came out as {value.item()}")
    dist.destroy_process_group()
    return {"rank": rank, "number": bench_step.NUMBER, "at": at}


if __name__ == "__main__":  # as torchrun starts it
    import json
    from pathlib import Path

    answer = first_all_reduce()
    beside = Path(os.environ["BENCH_OUT"], f".{answer['rank']}")
    beside.write_text(json.dumps(answer))
    beside.rename(beside.with_name(f"rank-{answer['rank']}"))
'''


def make_project(folder: Path) -> None:
    """The two modules, and a few files that never change, as projects have."""
    (folder / f"{TRAIN_NAME}.py").write_text(TRAIN)
    edit(folder, 100)
    notes = folder / "notes"
    notes.mkdir()
    for number in range(20):
        (notes / f"note_{number}.py").write_text(f"NOTE = {number}\n" * 50)


def edit(folder: Path, number: int) -> None:
    """One line of one file is another; its length stays, so that only its content tells."""
    if not 100 <= number <= 999:
        raise ValueError(f"an edit writes a number of three digits, not {number}")
    (folder / f"{STEP_NAME}.py").write_text(f'"""A step."""\n\nNUMBER = {number}\n')


def read_moment(answers: list[dict[str, Any]], *, ranks: int, number: int) -> float:
    """When the slowest rank was done; every rank must have spoken, and have run the new code."""
    if [answer["rank"] for answer in answers] != list(range(ranks)):
        raise RuntimeError(f"ranks 0..{ranks - 1} were expected, in order, not {answers}")
    if stale := [answer for answer in answers if answer["number"] != number]:
        raise RuntimeError(f"the code of before the edit (not {number}) ran: {stale}")
    return float(max(answer["at"] for answer in answers))

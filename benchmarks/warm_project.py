"""Project that the benchmark edits and calls: create it on disk, change one line, check its answers.

This module uses only the standard library, because every contestant's own Python imports it. TRAIN is the
source of the functions that ranks run. An edit changes one line of the module STEP, which TRAIN imports.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TRAIN_NAME, STEP_NAME = "bench_train", "bench_step"
TRAIN = '''\
"""Functions that ranks run. Only the function that needs torch imports it."""

import os
import time

import bench_step


def empty():
    return None


def read_all(data):
    """Read every page of an array, and return the sum."""
    return int(data[::4096].sum())


def running():
    """Return when a rank ran this code."""
    return {"rank": int(os.environ["RANK"]), "number": bench_step.NUMBER, "at": time.time()}


def first_all_reduce():
    """Create a process group, perform one all-reduce, and return when it was done."""
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
    """Create the two modules, and some files that never change, as in real projects."""
    (folder / f"{TRAIN_NAME}.py").write_text(TRAIN)
    edit(folder, 100)
    notes = folder / "notes"
    notes.mkdir()
    for number in range(20):
        (notes / f"note_{number}.py").write_text(f"NOTE = {number}\n" * 50)


def edit(folder: Path, number: int) -> None:
    """Change one line of one file. The file keeps its size, so that only its content differs."""
    if not 100 <= number <= 999:
        raise ValueError(f"number must have three digits, got {number}")
    (folder / f"{STEP_NAME}.py").write_text(f'"""A step."""\n\nNUMBER = {number}\n')


def read_moment(answers: list[dict[str, Any]], *, ranks: int, number: int) -> float:
    """Return when the slowest rank was done. Raise unless every rank answered with the new code."""
    if [answer["rank"] for answer in answers] != list(range(ranks)):
        raise RuntimeError(f"expected ranks 0..{ranks - 1} in order, got {answers}")
    if stale := [answer for answer in answers if answer["number"] != number]:
        raise RuntimeError(f"ranks ran code from before the edit (not {number}): {stale}")
    return float(max(answer["at"] for answer in answers))

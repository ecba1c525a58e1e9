"""Checkpoint cases of `llm.py`: the cost of a save, intact files, and SIGKILL during a save."""

from __future__ import annotations

import argparse
import math
import re
import shutil
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from llm_runs import find_out, kill, make_command, ours, read_metrics, run, start

SAVE_EVERY = 8  # steps
_WAIT_S = 300.0
_POLL_S = 0.002


def measure_saves(given: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Train with a save every few steps, and hash all files of the remaining checkpoints."""
    seen = ours("saves", given, precision=precision, checkpoint_every=SAVE_EVERY)
    seen["stalls_ms"] = find_stalls_ms(seen["windows"])
    folder = find_out(given, "saves")
    seen["whole"] = check_whole(folder)
    shutil.rmtree(folder)  # 30 GB
    return seen


def find_stalls_ms(windows: list[tuple[int, float, float]]) -> list[float]:
    """Return, for each window with a save, how much longer it took than the same steps without one.

    The first window is skipped because it compiles, and the last because it waits for the last file.
    """
    stalls, plain, before = [], [], windows[0][0]
    for step, elapsed_s, other_s in windows[1:]:
        num_steps = step - before
        # a step is logged before its save
        num_saves = (step - 1) // SAVE_EVERY - (before - 1) // SAVE_EVERY
        before = step
        if step == windows[-1][0]:
            break
        if num_saves:
            stalls.append((num_steps, num_saves, elapsed_s + other_s))
        else:
            plain.append((elapsed_s + other_s) / num_steps)
    step_s = statistics.median(plain) if plain else math.nan
    return [
        round((took_s - num_steps * step_s) / num_saves * 1000, 1)
        for num_steps, num_saves, took_s in stalls
    ]


def measure_kill(given: argparse.Namespace, precision: str) -> dict[str, Any]:
    """Kill the whole training run while it writes its second checkpoint, and start it again."""
    folder = find_out(given, "killed")
    shutil.rmtree(folder, ignore_errors=True)
    more = {"precision": precision, "checkpoint_every": SAVE_EVERY, "micro_batch": 2}
    command = make_command("killed", given, **more)
    begun_s = time.time()
    with (given.work / "killed.log").open("wb") as log:
        process = start(command, stdout=log, stderr=log)
        try:
            half = wait_for_half_written(folder, process)
        finally:
            kill(process)
            process.wait()
    whole = check_whole(folder)
    again = run(command, given.work / "killed-resumed.log")
    seen = read_metrics(folder, started_s=begun_s)
    shutil.rmtree(folder)
    return {**seen, "half_written": half, "whole": whole, "resumed_at": read_first_step(again)}


def wait_for_half_written(folder: Path, process: subprocess.Popen[bytes]) -> str:
    """Wait until a second checkpoint is being written, and return the name of its folder."""
    until_s = time.monotonic() + _WAIT_S
    while time.monotonic() < until_s and process.poll() is None:
        names = {path.name for path in folder.glob("*step-*")}
        whole = {name for name in names if re.fullmatch(r"step-\d+", name)}
        if whole and (half := names - whole):
            return half.pop()
        time.sleep(_POLL_S)
    raise RuntimeError(f"found no second checkpoint in progress in {folder}")


def check_whole(folder: Path) -> list[int]:
    """Return the steps of a run's checkpoints. Raise if a file differs from what was written."""
    from windlass.train.checkpoint.checkpoint_manifest import (
        CheckpointManifest,
        find_hash_faults,
        read_manifests,
    )
    from windlass.train.checkpoint.checkpoint_storage import open_storage

    storage, steps = open_storage(str(folder)), []
    for name, manifest in read_manifests(storage):
        if not isinstance(manifest, CheckpointManifest):
            continue
        if faults := find_hash_faults(storage, name, manifest, sorted(manifest.files)):
            raise RuntimeError(f"{name} of {folder} is damaged: {faults}")
        steps.append(manifest.step)
    return sorted(steps)


def read_first_step(output: str) -> int:
    """Return the step at which a training run began."""
    match = re.search(r"\[DDP\] .*step=(\d+)/", output)
    if match is None:
        raise RuntimeError(f"no [DDP] line: {output[-1500:]}")
    return int(match[1])

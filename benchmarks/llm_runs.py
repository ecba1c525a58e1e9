"""Runs the two sides of `llm.py`, each in a process of its own, and reads what they tell."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
WARM_UP = 10  # steps that are not counted
_FULL = ("OutOfMemoryError", "the GPU has no room")  # torch's own words, and the recipe's
_started: set[subprocess.Popen[Any]] = set()


class OutOfMemory(RuntimeError):
    """The device had no room for a case."""


def start(words: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Python with these words, in a session of its own, which `end_all` ends."""
    process = subprocess.Popen([sys.executable, *words], start_new_session=True, **options)
    _started.add(process)
    return process


def end_all() -> None:
    """Kill whatever still runs of what was started, with all that it has started."""
    for process in list(_started):
        kill(process)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a process that `start` made, unless it has ended, with all that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it ends this very moment
            os.killpg(process.pid, signal.SIGKILL)


def run(words: list[str], log: Path) -> str:
    """A command's output; its whole output is in the log as well."""
    started_s = time.perf_counter()
    process = start(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output: str = process.communicate()[0]
    log.write_text(output)
    took_s = time.perf_counter() - started_s
    print(f"  {' '.join(words)[:150]}: {took_s:.0f} s, status {process.returncode}", flush=True)
    if process.returncode:
        is_full = any(words in output for words in _FULL)
        kind = OutOfMemory if is_full else RuntimeError
        raise kind(f"see {log}: ...{output[-1500:]}")
    return output


def read_last(output: str) -> dict[str, Any]:
    """The JSON object in the last line of what a program wrote."""
    told: dict[str, Any] = json.loads(output.splitlines()[-1])
    return told


def hf(side: str, given: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """A case of Hugging Face's, in a process of its own."""
    flags = {"steps": given.steps, "batch": given.batch, "length": given.length, **more}
    words = [str(HERE / "llm_hf.py"), side, str(given.work)]
    words += [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    seen = read_last(run(words, given.work / f"hf-{side}-{flags['steps']}.log"))
    times = seen["times"]
    warm_up = min(WARM_UP, len(times) // 2)
    step_s = (times[-1] - times[warm_up]) / (len(times) - 1 - warm_up)
    return {
        "tokens_per_s": seen["tokens"] / step_s,
        "peak_gib": seen.get("peak_gib"),
        "losses": seen["losses"],
        "first_step_s": times[1] - times[0],
    }


def ours(
    name: str, given: argparse.Namespace, *words: str, kind: str = "long", **more: Any
) -> dict[str, Any]:
    """A case of the recipe from its beginning, as its metrics tell it."""
    shutil.rmtree(find_out(given, name), ignore_errors=True)
    started_s = time.time()
    output = run(make_command(name, given, *words, kind=kind, **more), given.work / f"{name}.log")
    seen = read_metrics(find_out(given, name), started_s=started_s)
    return {**seen, "rows_used": read_rows_used(output)}


def find_out(given: argparse.Namespace, name: str) -> Path:
    """The folder of a case of ours."""
    return Path(given.work) / "out" / name


def make_command(
    name: str,
    given: argparse.Namespace,
    *words: str,
    kind: str = "long",
    model: Path | None = None,
    **more: Any,
) -> list[str]:
    """What Python is told to run the recipe."""
    flags = {
        "model-local-dir": model or given.work / "model",
        "tokenizer-local-dir": given.work / "model",
        "train-file": given.work / f"{kind}.jsonl",
        "cache": given.work / "tokens",
        "out": given.work / "out",
        "run": name,
        "length": given.length,
        "batch": given.batch,
        "steps": given.steps,
        "checkpoint-every": 0,
        "log-every": 5,
        **{key.replace("_", "-"): value for key, value in more.items()},
    }
    command = ["-m", "windlass.recipes.train_framework", "--local-files-only", "--no-export"]
    command += [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    return [*command, *words]


def read_rows_used(output: str) -> float:
    """The share of the rows that are tokens, by the recipe's own words."""
    match = re.search(r"\[DATA\] .* ([\d.]+)% used", output)
    if match is None:
        raise RuntimeError(f"no [DATA] line: {output[-1500:]}")
    return float(match[1]) / 100


def read_metrics(folder: Path, *, started_s: float) -> dict[str, Any]:
    """What the recipe has written down of a training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if "tokens_per_s" in line.get("metrics", {})]
    counted = [line["metrics"] for line in told if line["step"] > WARM_UP] or [told[-1]["metrics"]]
    return {
        "tokens_per_s": statistics.median(m["tokens_per_s"] for m in counted),
        "mfu": statistics.median(m.get("mfu", 0.0) for m in counted),
        "data_wait_share": statistics.median(m["data_wait_share"] for m in counted),
        "peak_gib": told[-1]["metrics"]["memory_peak_bytes"] / 2**30,
        "losses": [line["metrics"]["loss"] for line in told],
        "windows": [
            (line["step"], line["metrics"]["elapsed_s"], line["metrics"]["other_s"])
            for line in told
        ],
        "first_steps_s": told[0]["time"] - started_s,
        "step_max_s": max(m["step_max_s"] for m in counted),
        "other_s": sum(m["other_s"] for m in counted),
        "step_p50_s": statistics.median(m["step_p50_s"] for m in counted),
    }

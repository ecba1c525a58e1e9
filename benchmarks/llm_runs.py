"""Run the two sides of `llm.py` in separate processes, and read their results."""

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
WARM_UP = 10  # steps that do not count
_FULL = ("OutOfMemoryError", "the GPU ran out of memory")  # texts of torch and of the recipe
_started: set[subprocess.Popen[Any]] = set()


class OutOfMemory(RuntimeError):
    """The device did not have enough memory for a case."""


def start(args: list[str], **options: Any) -> subprocess.Popen[Any]:
    """Start Python with these arguments in a new session, which `end_all` can kill."""
    process = subprocess.Popen([sys.executable, *args], start_new_session=True, **options)
    _started.add(process)
    return process


def end_all() -> None:
    """Kill all running processes from `start`, with their children."""
    for process in list(_started):
        kill(process)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill a running process from `start`, with its children."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            os.killpg(process.pid, signal.SIGKILL)


def run(args: list[str], log: Path) -> str:
    """Run Python with these arguments. Return its output, and write it to the log as well."""
    started_s = time.perf_counter()
    process = start(args, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output: str = process.communicate()[0]
    log.write_text(output)
    took_s = time.perf_counter() - started_s
    print(f"  {' '.join(args)[:150]}: {took_s:.0f} s, status {process.returncode}", flush=True)
    if process.returncode:
        is_full = any(text in output for text in _FULL)
        kind = OutOfMemory if is_full else RuntimeError
        raise kind(f"see {log}: ...{output[-1500:]}")
    return output


def read_last(output: str) -> dict[str, Any]:
    """Return the JSON object in the last line of an output."""
    result: dict[str, Any] = json.loads(output.splitlines()[-1])
    return result


def hf(side: str, given: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """Run a Hugging Face case in a separate process."""
    flags = {"steps": given.steps, "batch": given.batch, "length": given.length, **more}
    args = [str(HERE / "llm_hf.py"), side, str(given.work)]
    args += [arg for key, value in flags.items() for arg in (f"--{key}", str(value))]
    seen = read_last(run(args, given.work / f"hf-{side}-{flags['steps']}.log"))
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
    name: str, given: argparse.Namespace, *args: str, kind: str = "long", **more: Any
) -> dict[str, Any]:
    """Run a case of the recipe from the start, and return its metrics."""
    shutil.rmtree(find_out(given, name), ignore_errors=True)
    started_s = time.time()
    output = run(make_command(name, given, *args, kind=kind, **more), given.work / f"{name}.log")
    seen = read_metrics(find_out(given, name), started_s=started_s)
    return {**seen, "rows_used": read_rows_used(output)}


def find_out(given: argparse.Namespace, name: str) -> Path:
    """Return the output folder of one of Windlass's cases."""
    return Path(given.work) / "out" / name


def make_command(
    name: str,
    given: argparse.Namespace,
    *args: str,
    kind: str = "long",
    model: Path | None = None,
    **more: Any,
) -> list[str]:
    """Return Python's arguments for a run of the recipe."""
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
    command += [arg for key, value in flags.items() for arg in (f"--{key}", str(value))]
    return [*command, *args]


def read_rows_used(output: str) -> float:
    """Return the share of the rows that are tokens, from the recipe's output."""
    match = re.search(r"\[DATA\] .* ([\d.]+)% used", output)
    if match is None:
        raise RuntimeError(f"no [DATA] line: {output[-1500:]}")
    return float(match[1]) / 100


def read_metrics(folder: Path, *, started_s: float) -> dict[str, Any]:
    """Return the metrics that the recipe wrote for a training."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "tokens_per_s" in line.get("metrics", {})]
    counted = [line["metrics"] for line in steps if line["step"] > WARM_UP]
    counted = counted or [steps[-1]["metrics"]]
    return {
        "tokens_per_s": statistics.median(m["tokens_per_s"] for m in counted),
        "mfu": statistics.median(m.get("mfu", 0.0) for m in counted),
        "data_wait_share": statistics.median(m["data_wait_share"] for m in counted),
        "peak_gib": steps[-1]["metrics"]["memory_peak_bytes"] / 2**30,
        "losses": [line["metrics"]["loss"] for line in steps],
        "windows": [
            (line["step"], line["metrics"]["elapsed_s"], line["metrics"]["other_s"])
            for line in steps
        ],
        "first_steps_s": steps[0]["time"] - started_s,
        "step_max_s": max(m["step_max_s"] for m in counted),
        "other_s": sum(m["other_s"] for m in counted),
        "step_p50_s": statistics.median(m["step_p50_s"] for m in counted),
    }

"""Compare the LLM recipe with Hugging Face's Trainer and a plain loop: speed, loss, memory, stalls.

    python benchmarks/llm.py WORK [--only speed|logits|profile|saves|losses|memory|bf16,...] [--steps 40]

The program measures this machine's matmul rate. It creates a model of 1.24 billion random weights, a
tokenizer and documents in WORK. It then runs the cases one after another, each in a separate process.
`--together 3` runs three at a time, for cases that measure neither speed nor memory.

Windlass's cases start the recipe as users do, and read the metrics.jsonl that it writes. The ratios are
printed at the end. `--shape tiny` runs all cases on a machine without a GPU.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from functools import partial
from pathlib import Path
from typing import Any

from llm_losses import describe_losses, make_loss_cases
from llm_memory import KINDS, find_largest
from llm_profile import KINDS as PROFILES
from llm_runs import HERE, end_all, hf, ours, read_last, run
from llm_saves import measure_kill, measure_saves
from llm_speed import describe_speed
from llm_work import LENGTH, SHAPES

SHOWN = (
    *("mfu", "peak_gib", "rows_used", "data_wait_share", "first_steps_s"),
    *("step_p50_s", "step_max_s", "other_s"),
    *("layers", "billions", "refused", "resumed_at", "whole", "half_written", "stalls_ms"),
    *("ours_bf16", "hf_bf16", "is_export_equal", "step_ms", "groups"),
)
Cases = dict[str, Callable[[], dict[str, Any]]]


def make_cases(given: argparse.Namespace) -> dict[str, Cases]:
    """Return the groups of cases, by name."""
    plain, *_ = precisions = choose_precisions(given)
    speed: Cases = {
        "hf-trainer": partial(hf, "trainer", given),
        "hf-loop": partial(hf, "loop", given),
    }
    for precision in precisions:
        speed[precision] = partial(ours, precision, given, precision=precision)
        name = f"{precision}-mixed"
        speed[name] = partial(ours, name, given, kind="mixed", precision=precision)
        name = "lora" if precision == plain else f"lora-{precision}"
        speed[name] = partial(ours, name, given, lora=16, precision=precision)
    speed["padded"] = partial(ours, "padded", given, "--no-pack", kind="mixed", precision=plain)
    saves: Cases = {
        "saves": partial(measure_saves, given, plain),
        "killed": partial(measure_kill, given, plain),
    }
    memory: Cases = {kind: partial(find_largest, kind, given, plain) for kind in KINDS}
    logits: Cases = {"logits": partial(logits_of, given)}
    profile: Cases = {f"profile-{kind}": partial(profile_of, kind, given) for kind in PROFILES}
    losses = make_loss_cases(given, precisions=precisions)
    return {
        "speed": speed,
        "logits": logits,
        "profile": profile if given.shape != "tiny" else {},
        "saves": saves,
        "losses": losses,
        "memory": memory,
    }


def logits_of(given: argparse.Namespace) -> dict[str, Any]:
    """Measure the distance of Windlass's logits from transformers'."""
    args = [str(HERE / "llm_logits.py"), str(given.work), "--length", str(given.length)]
    return read_last(run(args, given.work / "logits.log"))


def profile_of(kind: str, given: argparse.Namespace) -> dict[str, Any]:
    """Profile one step."""
    args = [str(HERE / "llm_profile.py"), kind, "--shape", given.shape]
    return read_last(run(args, given.work / f"profile-{kind}.log"))


def choose_precisions(given: argparse.Namespace) -> tuple[str, ...]:
    """Return the precisions to compare. A CPU has no float8."""
    return ("bf16", "fp8") if given.shape != "tiny" else ("fp32",)


def choose(only: str, groups: dict[str, Cases]) -> Cases:
    """Return the cases of these groups and names (default: all)."""
    cases = {name: case for group in groups.values() for name, case in group.items()}
    chosen: Cases = {}
    for name in only.split(",") if only else groups:
        if name not in groups and name not in cases:
            known = ", ".join([*groups, *cases])
            sys.exit(f"llm.py: unknown case {name}\nhint: choose from {known}")
        chosen |= groups[name] if name in groups else {name: cases[name]}
    return chosen


def show(name: str, seen: dict[str, Any]) -> None:
    parts = [f"{name:15}"]
    if "tokens_per_s" in seen:
        parts.append(f"{seen['tokens_per_s']:9.0f} tokens/s")
    parts += [f"{key} {_text(seen[key])}" for key in SHOWN if seen.get(key) is not None]
    if losses := seen.get("losses"):
        parts.append(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    print("  ".join(parts), flush=True)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{key} {_text(item)}" for key, item in value.items())
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--tokens", type=int, default=8_000_000)
    parser.add_argument("--memory-gib", type=float, help="GPU memory to assume")
    parser.add_argument(
        "--together", type=int, default=1, help="cases to run concurrently (default: 1)"
    )
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, end_now)
    chosen = choose(given.only, make_cases(given)).items()
    device, rate = measure_matmul()
    if device == "cpu" and given.shape != "tiny":
        sys.exit(
            "llm.py: this machine has no GPU\nhint: run all cases on the CPU with `--shape tiny`"
        )
    print(f"matmul: {rate / 1e12:.4g} TFLOP/s", flush=True)
    make_work(given)
    seen: dict[str, Any] = {"matmul_flops_per_s": rate}
    with ThreadPoolExecutor(given.together) as pool:
        names = {pool.submit(case): name for name, case in chosen}
        for done in as_completed(names):
            record(names[done], done, seen)
            if given.json:
                given.json.write_text(json.dumps(seen))
    for describe in (describe_speed, describe_losses):
        for line in describe(seen, precisions=choose_precisions(given)):
            print(line)
    sys.exit(any(name not in seen for name in names.values()))  # failed cases are not in `seen`


def end_now(number: int, *_: Any) -> None:
    """End all cases, because a running case would disturb the next measurement."""
    end_all()
    os._exit(128 + number)


def record(name: str, done: Future[dict[str, Any]], seen: dict[str, Any]) -> None:
    """Store and print the result of a case."""
    try:
        seen[name] = done.result()
    except Exception as error:  # noqa: BLE001 - the other cases continue
        print(f"{name}: failed, {type(error).__name__}: {error}", flush=True)
    else:
        show(name, seen[name])


def measure_matmul() -> tuple[str, float]:
    """Return the device and its matmul rate, from a separate process to leave the GPU's memory free."""
    code = "import torch; from windlass.train.trainer.meters import measure_matmul_rate as m; "
    code += "device = 'cuda' if torch.cuda.is_available() else 'cpu'; print(device, m(device))"
    device, rate = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    return device, float(rate)


def make_work(given: argparse.Namespace) -> None:
    """Create missing models and documents in a separate process."""
    args = [str(HERE / "llm_work.py"), str(given.work)]
    args += ["--shape", given.shape, "--tokens", str(given.tokens)]
    given.work.mkdir(parents=True, exist_ok=True)
    try:
        run(args, given.work / "work.log")
    except RuntimeError as error:
        sys.exit(f"llm.py: {error}")


if __name__ == "__main__":
    main()

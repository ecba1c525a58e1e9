"""The LLM recipe against Hugging Face's Trainer and a plain loop: tokens per second, loss, memory, stalls.

    python benchmarks/llm.py WORK [--only bf16,fp8,...] [--steps 40] [--json FILE]

Makes a model of 1.24 billion random weights, a tokenizer and documents in WORK, measures this machine's
matmul, and runs each case as a process of its own, one after another. Ours is the recipe as anybody starts
it, read from the metrics.jsonl that it writes. Where there is no GPU, `--shape tiny` shows that all runs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from llm_work import LENGTH, SHAPES, make_work

HERE = Path(__file__).parent
SAVE_EVERY = 8  # steps
SHOWN = (
    "mfu",
    "peak_gib",
    "data_wait_share",
    "first_steps_s",
    "step_p50_s",
    "step_max_s",
    "other_s",
)
WARM_UP = 10  # steps that are not counted


def run(words: list[str], log: Path) -> str:
    """A command's output; its whole output is in the log as well."""
    started_s = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    log.write_text(done.stdout)
    took_s = time.perf_counter() - started_s
    print(f"  {' '.join(words)[:150]}: {took_s:.0f} s, status {done.returncode}", flush=True)
    if done.returncode:
        raise RuntimeError(f"see {log}: ...{done.stdout[-1500:]}")
    return done.stdout


def hf(side: str, given: argparse.Namespace, **more: Any) -> dict[str, Any]:
    """A case of Hugging Face's."""
    flags = {"steps": given.steps, "batch": given.batch, "length": given.length, **more}
    words = [str(HERE / "llm_hf.py"), side, str(given.work)]
    words += [word for key, value in flags.items() for word in (f"--{key}", str(value))]
    seen = json.loads(run(words, given.work / f"hf-{side}.log").splitlines()[-1])
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
    """A case of the recipe, as its metrics tell it."""
    folder = given.work / "out" / name
    shutil.rmtree(folder, ignore_errors=True)
    flags = {
        "model-local-dir": given.work / "model",
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
    started_s = time.time()
    run([*command, *words], given.work / f"{name}.log")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    told = [line for line in lines if "tokens_per_s" in line.get("metrics", {})]
    counted = [line["metrics"] for line in told if line["step"] > WARM_UP] or [told[-1]["metrics"]]
    return {
        "tokens_per_s": sum(m["tokens_per_s"] * m["elapsed_s"] for m in counted)
        / sum(m["elapsed_s"] for m in counted),
        "mfu": statistics.median(m.get("mfu", 0.0) for m in counted),
        "data_wait_share": statistics.median(m["data_wait_share"] for m in counted),
        "peak_gib": told[-1]["metrics"]["memory_peak_bytes"] / 2**30,
        "losses": [line["metrics"]["loss"] for line in told],
        "first_steps_s": told[0]["time"] - started_s,
        "step_max_s": max(m["step_max_s"] for m in counted),
        "other_s": sum(m["other_s"] for m in counted),
        "step_p50_s": statistics.median(m["step_p50_s"] for m in counted),
    }


def make_cases(given: argparse.Namespace) -> dict[str, Callable[[], dict[str, Any]]]:
    """Each case by its name."""
    bf16 = "bf16" if given.shape != "tiny" else "fp32"
    return {
        "hf-trainer": lambda: hf("trainer", given),
        "hf-loop": lambda: hf("loop", given),
        "bf16": lambda: ours("bf16", given, precision=bf16),
        "fp8": lambda: ours("fp8", given, precision="fp8"),
        "bf16-mixed": lambda: ours("bf16-mixed", given, kind="mixed", precision=bf16),
        "fp8-mixed": lambda: ours("fp8-mixed", given, kind="mixed", precision="fp8"),
        "padded": lambda: ours("padded", given, "--no-pack", kind="mixed", precision=bf16),
        "lora": lambda: ours("lora", given, lora=16, precision=bf16),
        "saves": lambda: ours("saves", given, precision=bf16, checkpoint_every=SAVE_EVERY),
    }


def show(name: str, seen: dict[str, Any]) -> None:
    losses = seen["losses"]
    print(
        f"{name:12} {seen['tokens_per_s']:9.0f} tokens/s  "
        + "  ".join(f"{key} {seen[key]:.3g}" for key in SHOWN if seen.get(key) is not None)
        + f"  loss {losses[0]:.3f} -> {losses[-1]:.3f}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--tokens", type=int, default=8_000_000)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    make_work(given.work, shape=given.shape, num_tokens=given.tokens)
    rate = measure_matmul()
    print(f"matmul: {rate / 1e12:.1f} TFLOP/s", flush=True)
    seen: dict[str, Any] = {"matmul_flops_per_s": rate}
    cases = make_cases(given)
    for name in given.only.split(",") if given.only else cases:
        try:
            seen[name] = cases[name]()
        except RuntimeError as error:
            print(f"{name}: failed, {error}", flush=True)
            continue
        show(name, seen[name])
        if given.json:
            given.json.write_text(json.dumps(seen))


def measure_matmul() -> float:
    """In a process of its own, so that this one holds no memory of a GPU."""
    code = "import torch; from windlass.train.matmul_rate import measure_matmul_rate as m; "
    code += "print(m('cuda' if torch.cuda.is_available() else 'cpu'))"
    return float(subprocess.check_output([sys.executable, "-c", code], text=True))


if __name__ == "__main__":
    main()

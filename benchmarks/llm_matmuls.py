"""Measure what adapter columns add to the matmuls of a Llama's layers.

    python benchmarks/llm_matmuls.py [--shape 1b] [--tokens 32768] [--more 0,16,32,64] [--json FILE]

The results explain the memory layout of `linear_layers`. Each layer runs forward (`x W'`) and backward
(`g W`), with additional columns either to sum over or in the result. Cases take turns, and the program
prints medians. It runs in bfloat16 on a GPU, and otherwise on the CPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from llm_work import SHAPES, make_config

from windlass.recipes.llm.llama_config import read_llama_config
from windlass.train.trainer.meters import measure_matmul_rate

_ROUNDS = 15


class Case(NamedTuple):
    """One matmul, with its number of summed columns and of columns in the result."""

    name: str
    way: str
    more: int
    summed: int
    columns: int
    is_transposed: bool  # the right side is the transpose of a stored weight


def list_cases(shape: str, mores: list[int]) -> list[Case]:
    config = read_llama_config(make_config(shape))
    width, mlp = config.hidden_size, config.mlp_size
    layers = {
        "qkv": (width, config.query_size + 2 * config.key_size),
        "o": (config.query_size, width),
        "gate, up": (width, 2 * mlp),
        "down": (mlp, width),
    }
    cases = []
    for name, (num_in, num_out) in layers.items():
        for more in mores:
            ways = ("summed over", "beside") if more else ("plain",)
            for way in ways:
                summed, beside = (more, 0) if way == "summed over" else (0, more)
                cases += [
                    Case(f"{name} x W'", way, more, num_in + summed, num_out + beside, True),
                    Case(f"{name} g W", way, more, num_out + summed, num_in + beside, False),
                ]
    return cases


def make_matmul(case: Case, tokens: int, device: torch.device) -> Callable[[], object]:
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    left = torch.randn(tokens, case.summed, device=device, dtype=dtype)
    if case.is_transposed:
        right = torch.randn(case.columns, case.summed, device=device, dtype=dtype).t()
    else:
        right = torch.randn(case.summed, case.columns, device=device, dtype=dtype)
    return lambda: left @ right


def time_ms(call: Callable[[], object], device: torch.device) -> float:
    """Return the mean time of three consecutive calls, which keep work queued on the GPU."""
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started_s = time.perf_counter()
    for _ in range(3):
        call()
    wait()
    return (time.perf_counter() - started_s) / 3 * 1e3


def measure(cases: list[Case], tokens: int, device: torch.device) -> dict[Case, float]:
    """Return the median time of each case. Cases of the same layer and direction take turns."""
    medians = {}
    for name in dict.fromkeys(case.name for case in cases):
        calls = {case: make_matmul(case, tokens, device) for case in cases if case.name == name}
        times: dict[Case, list[float]] = {case: [] for case in calls}
        for _ in range(_ROUNDS + 2):
            for case, call in calls.items():
                times[case].append(time_ms(call, device))
        medians |= {case: statistics.median(ms[2:]) for case, ms in times.items()}
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", choices=SHAPES, default="1b")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--more", default="0,16,32,48,64,128")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    print(f"matmul: {measure_matmul_rate(device) / 1e12:.4g} TFLOP/s")
    cases = list_cases(given.shape, [int(more) for more in given.more.split(",")])
    medians = measure(cases, given.tokens, device)
    for case, ms in medians.items():
        rate = 2 * given.tokens * case.summed * case.columns / ms / 1e9
        print(f"{case.name:14} {case.way:12} +{case.more:<4} {ms:8.3f} ms {rate:8.4g} TFLOP/s")
    if given.json:
        rows = [{**case._asdict(), "ms": ms} for case, ms in medians.items()]
        given.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

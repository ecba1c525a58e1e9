"""Evaluation of measurements by the benchmark of the LLM recipe, and a complete run at toy size."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
from pathlib import Path

import pytest

_PROGRAM = Path(__file__).parents[2] / "benchmarks" / "llm.py"


def test_each_case_is_compared_with_its_peers_of_the_same_run(load):
    speeds = {"hf-trainer": 40.0, "bf16": 60.0, "fp8": 75.0, "lora": 77.0, "lora-fp8": 90.0}
    seen = {name: {"tokens_per_s": speed} for name, speed in speeds.items()}

    lines = load("llm_speed").describe_speed(seen, precisions=("bf16", "fp8"))

    assert lines == [
        "bf16 is 1.50x of hf-trainer",
        "fp8 is 1.88x of hf-trainer",
        "fp8 is 1.25x of bf16",
        "lora is 1.28x of bf16 (>= 1.3x: MISSED)",
        "lora-fp8 is 1.20x of fp8",
    ]


def test_packed_rows_are_compared_with_padded_ones(load):
    seen = {
        "bf16-mixed": {"tokens_per_s": 64.0, "rows_used": 0.999},
        "padded": {"tokens_per_s": 16.0, "rows_used": 0.234},
    }

    lines = load("llm_speed").describe_speed(seen, precisions=("bf16", "fp8"))

    assert lines == [
        "bf16-mixed is 4.00x of padded",
        "packed rows are 99.9% tokens (>= 98%: met), padded ones 23.4%",
    ]


def test_unmeasured_speed_is_not_reported(load):
    seen = {"matmul_flops_per_s": 1e12, "saves": {"tokens_per_s": 1.0}}

    assert load("llm_speed").describe_speed(seen, precisions=("bf16", "fp8")) == []


def test_used_share_of_rows_matches_the_recipe(load):
    line = "[DATA] a%20b.jsonl: 9 documents, 70 tokens in 6 rows, 91.1% used, 0 documents split"

    assert load("llm_runs").read_rows_used(f"x\n{line}\ny") == pytest.approx(0.911)
    with pytest.raises(RuntimeError, match=r"no \[DATA\] line"):
        load("llm_runs").read_rows_used("nothing")


def test_cost_of_a_save_is_the_added_step_time(load):
    find_stalls_ms = load("llm_saves").find_stalls_ms
    # Saves at steps 8, 16 and 24 are in windows two, four and five. The last window does not count.
    windows = [(5, 30.0, 0.0), (10, 5.0, 0.02), (15, 5.0, 0.0), (20, 5.01, 0.0), (25, 9.0, 0.0)]

    assert find_stalls_ms(windows) == [20.0, 10.0]
    # A save at the last step of a window delays the next window.
    windows = [(4, 30.0, 0.0), (8, 4.0, 0.0), (12, 4.1, 0.0), (15, 3.0, 0.0), (20, 9.0, 0.0)]
    assert find_stalls_ms(windows) == [100.0]
    assert all(math.isnan(stall) for stall in find_stalls_ms([(5, 1, 0), (10, 1, 0), (15, 1, 0)]))


@pytest.mark.parametrize(("fp8", "verdict"), [(3.01, "equal"), (3.5, "NOT equal")])
def test_losses_are_equal_within_two_sigma_of_the_seeds(load, fp8, verdict):
    seeds = load("llm_losses").SEEDS
    noise = dict(zip(seeds, (-0.01, 0.0, 0.01), strict=True))
    seen = {
        f"losses-{precision}-{seed}": {"losses": [9.0] * 25 + [mean + noise[seed]] * 5}
        for precision, mean in (("bf16", 3.0), ("fp8", fp8))
        for seed in seeds
    }

    *_, line = load("llm_losses").describe_losses(seen, precisions=("bf16", "fp8"))

    assert line == f"difference {fp8 - 3:.4f}, 2 sigma 0.0200: {verdict}"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_benchmark_runs_at_toy_size(tmp_path):
    pytest.importorskip("transformers")
    pytest.importorskip("peft")
    results = tmp_path / "results.json"
    sizes = ["--steps", "20", "--batch", "4", "--length", "256", "--tokens", "60000"]
    words = ["--shape", "tiny", *sizes, "--json", str(results)]
    words += ["--only", "hf-trainer,hf-loop,fp32,fp32-mixed,lora,padded,logits,saves,killed"]

    done = subprocess.run(
        [sys.executable, str(_PROGRAM), str(tmp_path / "work"), *words],
        capture_output=True,
        text=True,
        check=True,
    )

    assert re.search(r"^matmul: [\d.]+ TFLOP/s$", done.stdout, re.MULTILINE)
    assert "failed" not in done.stdout, done.stdout
    seen = json.loads(results.read_text())
    assert seen["fp32"]["losses"][-1] < seen["fp32"]["losses"][0]
    assert seen["logits"]["is_export_equal"]
    assert seen["saves"]["whole"] == [16, 20]
    assert seen["killed"]["resumed_at"] == seen["killed"]["whole"][-1]
    for pair in ("fp32 is .*x of hf-trainer", "fp32 is .*x of hf-loop", "lora is .*x of fp32"):
        assert re.search(pair, done.stdout)
    assert "packed rows are" in done.stdout

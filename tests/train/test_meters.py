"""Meter readings for steps of known duration."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import accumulate, chain

import pytest
import torch

from windlass.train.trainer.meters import Meters, _measure, measure_matmul_rate, spread_over_ranks


def clock_of(*durations_s: float) -> Iterator[float]:
    """Return a clock whose events end after these seconds."""
    return accumulate(chain([100.0], durations_s))


def test_rates_percentiles_and_waits() -> None:
    times = clock_of(*[0.1] * 98, 0.5, 1.0)
    meters = Meters(
        flops_per_token=10.0, world_size=4, peak_flops=1000.0, clock=lambda: next(times)
    )
    for _ in range(100):
        meters.step(tokens=100, samples=2, data_wait_s=0.01)
    reading = meters.read()
    assert reading["num_steps"] == 100
    assert reading["elapsed_s"] == pytest.approx(11.3)
    assert reading["tokens_per_s"] == pytest.approx(10_000 / 11.3)
    assert reading["samples_per_s"] == pytest.approx(200 / 11.3)
    assert reading["mfu"] == pytest.approx(100_000 / 11.3 / 4000)
    assert reading["step_p50_s"] == pytest.approx(0.1)
    assert reading["step_p95_s"] == pytest.approx(0.1)
    assert reading["step_max_s"] == pytest.approx(1.0)
    assert reading["data_wait_share"] == pytest.approx(1.0 / 11.3)
    assert reading["memory_peak_bytes"] > 1e6


def test_skipped_time_counts_in_no_rate() -> None:
    times = clock_of(1.0, 7.0, 1.0)
    meters = Meters(clock=lambda: next(times))
    meters.step(samples=5)
    meters.skip()
    meters.step(samples=5)
    reading = meters.read()
    assert reading["samples_per_s"] == pytest.approx(5.0)
    assert reading["other_s"] == pytest.approx(7.0)
    assert "mfu" not in reading


def test_readings_cover_separate_steps() -> None:
    times = clock_of(1.0, 2.0, 2.0)
    meters = Meters(clock=lambda: next(times))
    meters.step(samples=1)
    assert meters.read()["samples_per_s"] == pytest.approx(1.0)
    meters.step(samples=1)
    meters.step(samples=1)
    assert meters.read()["samples_per_s"] == pytest.approx(0.5)
    assert meters.read()["num_steps"] == 2


def test_spread_names_the_waiting_rank_but_no_slowest() -> None:
    spread = spread_over_ranks(
        [
            {"step_p50_s": 1.0, "data_wait_share": 0.1, "memory_peak_bytes": 5.0},
            {"step_p50_s": 1.5, "data_wait_share": 0.6, "memory_peak_bytes": 4.0},
        ]
    )
    assert "slowest_rank" not in spread  # collectives equalize the time of a step
    assert (spread["rank_step_p50_min_s"], spread["rank_step_p50_max_s"]) == (1.0, 1.5)
    assert spread["most_waiting_rank"] == 1
    assert spread["rank_memory_peak_max_bytes"] == 5.0


def test_a_step_costs_less_than_20_microseconds() -> None:
    meters = Meters()
    best_s = float("inf")
    for _ in range(20):
        start_s = time.perf_counter()
        for _ in range(100):
            meters.step(tokens=4096, samples=2, data_wait_s=0.001)
        best_s = min(best_s, (time.perf_counter() - start_s) / 100)
        meters.read()
    assert best_s < 20e-6


def test_measuring_leaves_random_numbers_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    _measure.__wrapped__("cpu", torch.float32)
    assert torch.equal(torch.get_rng_state(), before)


def test_the_matmul_rate_is_measured_once() -> None:
    rate = measure_matmul_rate("cpu")
    num_measured = _measure.cache_info().misses
    assert measure_matmul_rate(torch.device("cpu"), torch.float32) == rate
    assert _measure.cache_info().misses == num_measured
    assert 1e8 < rate < 1e14

"""Meters of a training run's speed and waits. A step costs microseconds and no device sync.

The trainer or a hand-written loop owns them. Each `read` covers the steps since the last one, so the lines
of a metrics.jsonl add up. Names follow the project (`x_s`, `num_x`, `x_bytes`, and `_share` for 0 to 1). This
module does not communicate with other ranks.

MFU is relative to the device's rate in a plain matrix product. It is measured once per process, device and
type, in a few tenths of a second. A measured rate is lower than a data sheet's (clocks, power, memory), so
shares of it are higher than published ones. `Meters(peak_flops=)` sets another rate.
"""

from __future__ import annotations

import functools
import resource
import sys
import time
from array import array
from collections.abc import Callable, Sequence

import torch

_BUDGET_S = 0.2
_MAX_ROUNDS = 30
_CUDA_SIZE = 8192
_CPU_SIZE = 768
# readings that `spread_over_ranks` needs from every rank
OF_EACH_RANK = ("step_p50_s", "data_wait_share", "memory_peak_bytes")
_KEPT = 4096  # step durations kept between two reads, while sums cover all steps


def measure_matmul_rate(device: torch.device | str, dtype: torch.dtype | None = None) -> float:
    """Return the floating-point operations per second of the best of several products.

    Measured once per process.

    dtype: type that the training run computes in (default: bfloat16 on an accelerator, float32 on a CPU).
    """
    device = torch.device(device)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return _measure(str(device), dtype)


@functools.cache
def _measure(device: str, dtype: torch.dtype) -> float:
    size = _CPU_SIZE if torch.device(device).type == "cpu" else _CUDA_SIZE
    rng = torch.Generator(device).manual_seed(0)  # does not affect the training's random numbers
    with torch.no_grad():
        left = torch.randn(size, size, device=device, generator=rng).to(dtype)
        right = torch.randn(size, size, device=device, generator=rng).to(dtype)
        product = torch.empty(size, size, device=device, dtype=dtype)
        best_s = _best_of(lambda: torch.mm(left, right, out=product), wait=_waiter(device))
    return 2.0 * size**3 / best_s


def _best_of(multiply: Callable[[], object], *, wait: Callable[[], None]) -> float:
    """Return the seconds of the fastest round, because other processes slow some rounds down."""
    for _ in range(2):  # libraries choose kernels, and clocks speed up
        multiply()
    wait()
    best_s = float("inf")
    end_s = time.perf_counter() + _BUDGET_S
    for _ in range(_MAX_ROUNDS):
        start_s = time.perf_counter()
        multiply()
        wait()
        now_s = time.perf_counter()
        best_s = min(best_s, now_s - start_s)
        if now_s > end_s:
            break
    return best_s


def _waiter(device: str) -> Callable[[], None]:
    """Return a function that waits until the device has finished its queued work."""
    kind = torch.device(device).type
    if kind == "cpu":
        return lambda: None
    return functools.partial(getattr(torch, kind).synchronize, torch.device(device))


class Meters:
    """Meters of one rank: `step` after an optimizer step, `skip` after other work, `read` to log."""

    def __init__(
        self,
        *,
        flops_per_token: float = 0.0,
        flops_per_sample: float = 0.0,
        world_size: int = 1,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | None = None,
        peak_flops: float | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make the meters of this rank.

        flops_per_token, flops_per_sample: forward and backward operations of the model (0: no MFU).
        world_size: number of devices that share the counts passed to `step`.
        dtype: type of the matrix product for MFU. See measure_matmul_rate.
        peak_flops: operations per second of one device, instead of a measured rate.
        """
        self._flops_per_token = flops_per_token
        self._flops_per_sample = flops_per_sample
        self._world_size = world_size
        self._device = torch.device(device)
        self._clock = clock
        self._rate = peak_flops or 0.0
        if not self._rate and (flops_per_token or flops_per_sample):
            self._rate = measure_matmul_rate(self._device, dtype)
        self._last_s = clock()
        self._begin_interval()
        self._reading: dict[str, float] = {}

    def _begin_interval(self) -> None:
        self._durations = array("d")
        self._num_steps = 0
        self._elapsed_s = 0.0
        self._other_s = 0.0
        self._data_wait_s = 0.0
        self._tokens = 0
        self._samples = 0

    def step(self, *, tokens: int = 0, samples: int = 0, data_wait_s: float = 0.0) -> None:
        """Count an optimizer step. tokens, samples: over ALL ranks. data_wait_s: this rank's."""
        now_s = self._clock()
        duration_s = now_s - self._last_s
        self._last_s = now_s
        if len(self._durations) < _KEPT:
            self._durations.append(duration_s)
        else:
            self._durations[self._num_steps % _KEPT] = duration_s
        self._num_steps += 1
        self._elapsed_s += duration_s
        self._data_wait_s += data_wait_s
        self._tokens += tokens
        self._samples += samples

    def skip(self) -> None:
        """Exclude the time since the last step: a start, an evaluation, or a wait for a checkpoint."""
        now_s = self._clock()
        self._other_s += now_s - self._last_s
        self._last_s = now_s

    def read(self) -> dict[str, float]:
        """Return the readings of the steps since the last read. Without steps, repeat the last readings."""
        if self._num_steps:
            self._reading = {**self._read_rates(), **self._read_times()}
            self._begin_interval()
        return dict(self._reading)

    def _read_rates(self) -> dict[str, float]:
        elapsed_s = max(self._elapsed_s, 1e-9)
        rates = {}
        if self._tokens:
            rates["tokens_per_s"] = self._tokens / elapsed_s
        if self._samples:
            rates["samples_per_s"] = self._samples / elapsed_s
        if self._rate:
            flops = self._tokens * self._flops_per_token + self._samples * self._flops_per_sample
            rates["flops_per_s"] = flops / elapsed_s
            rates["mfu"] = flops / elapsed_s / (self._rate * self._world_size)
        return rates

    def _read_times(self) -> dict[str, float]:
        ordered = sorted(self._durations)
        return {
            "num_steps": self._num_steps,
            "elapsed_s": self._elapsed_s,
            "other_s": self._other_s,
            "step_p50_s": _percentile(ordered, 0.50),
            "step_p95_s": _percentile(ordered, 0.95),
            "step_max_s": ordered[-1],
            "data_wait_share": min(self._data_wait_s / max(self._elapsed_s, 1e-9), 1.0),
            "memory_peak_bytes": read_memory_peak(self._device),
        }


def spread_over_ranks(readings: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the spread of all ranks' readings, in rank order, as numbers to log.

    This names no slowest rank, because collectives give all ranks the same step time. A high data wait or
    memory peak may reveal the rank that the others wait for.
    """
    waits = [reading.get("data_wait_share", 0.0) for reading in readings]
    steps = [reading.get("step_p50_s", 0.0) for reading in readings]
    return {
        "rank_step_p50_min_s": min(steps, default=0.0),
        "rank_step_p50_max_s": max(steps, default=0.0),
        "rank_data_wait_max_share": max(waits, default=0.0),
        "most_waiting_rank": waits.index(max(waits)) if waits else 0,
        "rank_memory_peak_max_bytes": max(
            (reading.get("memory_peak_bytes", 0.0) for reading in readings), default=0.0
        ),
    }


def read_memory_peak(device: torch.device) -> float:
    """Return the peak memory of tensors on an accelerator, or of this process on a CPU."""
    if device.type == "cuda":
        return float(torch.cuda.max_memory_allocated(device))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return float(peak if sys.platform == "darwin" else peak * 1024)


def _percentile(ordered: Sequence[float], share: float) -> float:
    """Return the nearest of the sorted values."""
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]

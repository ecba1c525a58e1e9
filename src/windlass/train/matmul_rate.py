"""Floating-point operations a second of a device in a plain matrix product: what MFU is measured against.

Called by Meters, once a process, device and type; takes some tenths of a second. A measured rate is lower
than a data sheet's (clocks, power, memory), so shares against it are higher than published ones:
`Meters(peak_flops=)` takes another number. Imports torch.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable

import torch

_BUDGET_S = 0.2
_MAX_ROUNDS = 30
_CUDA_SIZE = 8192
_CPU_SIZE = 768


def measure_matmul_rate(device: torch.device | str, dtype: torch.dtype | None = None) -> float:
    """Floating-point operations a second of the best of several products; measured once a process.

    dtype: what the training computes in; by default bfloat16 on an accelerator, float32 on a CPU.
    """
    device = torch.device(device)
    if dtype is None:
        dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    return _measure(str(device), dtype)


@functools.cache
def _measure(device: str, dtype: torch.dtype) -> float:
    size = _CPU_SIZE if torch.device(device).type == "cpu" else _CUDA_SIZE
    rng = torch.Generator(device).manual_seed(0)  # the training's own numbers stay as they are
    with torch.no_grad():
        left = torch.randn(size, size, device=device, generator=rng).to(dtype)
        right = torch.randn(size, size, device=device, generator=rng).to(dtype)
        product = torch.empty(size, size, device=device, dtype=dtype)
        best_s = _best_of(lambda: torch.mm(left, right, out=product), wait=_waiter(device))
    return 2.0 * size**3 / best_s


def _best_of(multiply: Callable[[], object], *, wait: Callable[[], None]) -> float:
    """Seconds of the fastest round: on a busy machine the others say more about the neighbours."""
    for _ in range(2):  # libraries choose their kernels, clocks go up
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
    """Waits until the device has done what it was given."""
    kind = torch.device(device).type
    if kind == "cpu":
        return lambda: None
    return functools.partial(getattr(torch, kind).synchronize, torch.device(device))

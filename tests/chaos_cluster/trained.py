"""Results of a training run, and checks of their correctness.

Reads the results of `training.train`. The expected weights are computed without torch.distributed, so resume
errors and skipped or repeated steps cannot affect them.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from chaos_cluster.ground import WAIT_S, wait_for
from chaos_cluster.training import LEARNING_RATE, SAVE_EVERY, make_batch

import windlass as wl
from windlass.wire.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One attempt, according to the records of its ranks."""

    first_step: int
    last_step: int
    from_s: float  # when its first rank was alive
    stepped_s: float  # when all its ranks had made a step
    until_s: float  # when its last rank was last alive


def read_spans(results: Sequence[dict[str, Any]]) -> dict[int, Span]:
    """Return every attempt that made at least one step."""
    steps: dict[int, list[int]] = {}
    times: dict[int, list[float]] = {}
    firsts: dict[int, float] = {}
    for name, text in results[0]["records"].items():
        kind, attempt = name.split("-")[0], int(name.split("-")[1])
        numbers = [float(word) for word in text.split()]
        if kind == "journal":  # alternating steps and times
            steps.setdefault(attempt, []).extend(int(number) for number in numbers[::2])
            numbers = numbers[1::2]
            firsts[attempt] = max(firsts.get(attempt, 0.0), min(numbers, default=0.0))
        times.setdefault(attempt, []).extend(numbers)
    return {
        attempt: Span(
            first_step=min(found),
            last_step=max(found),
            from_s=min(times[attempt]),
            stepped_s=firsts[attempt],
            until_s=max(times[attempt]),
        )
        for attempt, found in sorted(steps.items())
        if found
    }


def check_results(results: Sequence[dict[str, Any]], *, total: int) -> dict[int, Span]:
    """Check the weights, that each attempt resumed from a checkpoint, and that no two attempts overlap."""
    wanted = make_weights(total, len(results))
    for result in results:
        got = torch.tensor(result["weights"])
        assert torch.allclose(got, wanted, atol=1e-4), (got, wanted)
    spans = read_spans(results)
    numbers = sorted(spans)
    for before, after in itertools.pairwise(numbers):
        first, second = spans[before], spans[after]
        assert second.first_step % SAVE_EVERY == 0
        assert first.last_step + 1 - SAVE_EVERY <= second.first_step <= first.last_step + 1, spans
        assert first.until_s < second.from_s, f"attempts {before} and {after} overlap: {spans}"
    assert spans[numbers[-1]].last_step == total - 1
    return spans


def make_weights(total: int, num_ranks: int) -> torch.Tensor:
    """Compute the weights in one process that sees the batches of all ranks."""
    weight = torch.zeros(1, 4, requires_grad=True)
    for step in range(total):
        losses = []
        for rank in range(num_ranks):
            inputs, wanted = make_batch(step, rank)
            losses.append(torch.nn.functional.mse_loss(inputs @ weight.T, wanted))
        (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), weight)
        weight = (weight - LEARNING_RATE * gradient).detach().requires_grad_()
    return weight.detach().flatten()


# -- training runs -------------------------------------------------------------------------------


def wait_for_step(job: wl.Job, step: int, *, attempt: int = 0, timeout_s: float = WAIT_S) -> None:
    """Wait until the slowest rank of an attempt has reached a step."""

    def is_there() -> bool:
        status = job.status()
        assert not status.phase.is_final, status
        return status.attempt == attempt and (status.progress.step or 0) >= step

    wait_for(is_there, f"step {step} of attempt {attempt}: {job.status()}", timeout_s)


def measure(job: wl.Job, is_so: Callable[[JobStatus], bool], timeout_s: float = WAIT_S) -> float:
    """Wait until the status meets a condition, and return the seconds it took."""
    began_s = time.monotonic()
    wait_for(lambda: is_so(job.status()), f"so: {job.status()}", timeout_s)
    return time.monotonic() - began_s


def read_times(results: Sequence[dict[str, Any]]) -> list[float]:
    """Return the times of all steps of all ranks."""
    records = results[0]["records"]
    return [
        float(line.split()[1])
        for name in records
        if name.startswith("journal")
        for line in records[name].splitlines()
    ]

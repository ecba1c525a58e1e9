"""What came out of a training, and whether it is what must come out.

Reads the results of `training.train`. The wanted weights are computed here without torch.distributed: what
was resumed badly, skipped or done twice does not reach them.
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
    """One attempt, as its ranks wrote it down."""

    first_step: int
    last_step: int
    from_s: float  # when the first of its ranks was alive
    stepped_s: float  # when all its ranks had made a step
    until_s: float  # when the last of its ranks was last alive


def read_spans(results: Sequence[dict[str, Any]]) -> dict[int, Span]:
    """Every attempt that made at least one step."""
    steps: dict[int, list[int]] = {}
    times: dict[int, list[float]] = {}
    firsts: dict[int, float] = {}
    for name, text in results[0]["told"].items():
        kind, attempt = name.split("-")[0], int(name.split("-")[1])
        numbers = [float(word) for word in text.split()]
        if kind == "journal":  # step and time by turns
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
    """The weights are right, each attempt went on from a checkpoint, and no two were alive at once."""
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
    """What one process computes that sees all ranks' batches."""
    weight = torch.zeros(1, 4, requires_grad=True)
    for step in range(total):
        losses = []
        for rank in range(num_ranks):
            inputs, wanted = make_batch(step, rank)
            losses.append(torch.nn.functional.mse_loss(inputs @ weight.T, wanted))
        (gradient,) = torch.autograd.grad(torch.stack(losses).mean(), weight)
        weight = (weight - LEARNING_RATE * gradient).detach().requires_grad_()
    return weight.detach().flatten()


# -- a training that goes on ---------------------------------------------------------------------


def wait_for_step(job: wl.Job, step: int, *, attempt: int = 0, timeout_s: float = WAIT_S) -> None:
    """Until the slowest rank of an attempt is there."""

    def is_there() -> bool:
        status = job.status()
        assert not status.phase.is_final, status
        return status.attempt == attempt and (status.progress.step or 0) >= step

    wait_for(is_there, f"step {step} of attempt {attempt}: {job.status()}", timeout_s)


def measure(job: wl.Job, is_so: Callable[[JobStatus], bool], timeout_s: float = WAIT_S) -> float:
    """Seconds until the status is so."""
    began_s = time.monotonic()
    wait_for(lambda: is_so(job.status()), f"so: {job.status()}", timeout_s)
    return time.monotonic() - began_s


def read_times(results: Sequence[dict[str, Any]]) -> list[float]:
    """When each rank made each of its steps."""
    told = results[0]["told"]
    return [
        float(line.split()[1])
        for name in told
        if name.startswith("journal")
        for line in told[name].splitlines()
    ]

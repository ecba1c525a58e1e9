"""Loss cases of `llm.py`: bf16 and fp8 over seeds, and Windlass's loop against Hugging Face's.

A seed is another order of the same rows. Cases are small (rows of 2048, 4 rows per step) so that many of them
can run. `--together` runs several at a time. Hugging Face's loop sees the rows of Windlass's first case for
the first 200 steps, in the same order and at the same learning rates.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

from llm_runs import hf, ours

SEEDS = (42, 43, 44)
SEEDS_STEPS, LOOP_STEPS = 300, 200
AT_ONCE = 10  # steps per mean
LAST = 5  # number of means at the end that are compared
Case = Callable[[], dict[str, Any]]


def make_loss_cases(given: argparse.Namespace, *, precisions: tuple[str, ...]) -> dict[str, Case]:
    """Return the cases by name."""
    rows = {"length": min(given.length, 2048), "batch": 4}
    settings = {**rows, "log_every": AT_ONCE, "steps": SEEDS_STEPS}
    cases: dict[str, Case] = {
        "losses-hf": partial(
            hf, "loop", given, **{**rows, "steps": LOOP_STEPS, "schedule-steps": SEEDS_STEPS}
        )
    }
    for seed in SEEDS:
        for precision in precisions:
            name = _name(precision, seed)
            cases[name] = partial(
                ours, name, given, **{**settings, "precision": precision, "seed": seed}
            )
    return cases


def describe_losses(seen: dict[str, Any], *, precisions: tuple[str, ...]) -> list[str]:
    """Return lines that compare the losses of all cases that ran."""
    lines = []
    ends = {
        precision: [
            statistics.mean(seen[name]["losses"][-LAST:])
            for seed in SEEDS
            if (name := _name(precision, seed)) in seen
        ]
        for precision in precisions
    }
    complete = {precision: values for precision, values in ends.items() if len(values) > 1}
    for precision, values in complete.items():
        lines.append(
            f"{precision}: loss over the last {LAST * AT_ONCE} of {SEEDS_STEPS} steps "
            f"{statistics.mean(values):.4f}, sigma {statistics.stdev(values):.4f} over {len(values)} seeds"
        )
    if len(complete) == 2:
        first, second = complete.values()
        apart = abs(statistics.mean(first) - statistics.mean(second))
        limit = 2 * statistics.stdev(first)
        verdict = "equal" if apart <= limit else "NOT equal"
        lines.append(f"difference {apart:.4f}, 2 sigma {limit:.4f}: {verdict}")
    mine = _name(precisions[0], SEEDS[0])
    if mine in seen and "losses-hf" in seen:
        theirs = _means(seen["losses-hf"]["losses"])
        pairs = list(zip(seen[mine]["losses"], theirs, strict=False))
        most = max(abs(mine - other) / other for mine, other in pairs)
        lines.append(
            f"ours and Hugging Face's loop on one order, {LOOP_STEPS} steps: means of {AT_ONCE} steps "
            f"differ by {most:.2%} at most, the last are {pairs[-1][0]:.4f} and {pairs[-1][1]:.4f}"
        )
    return lines


def _name(precision: str, seed: int) -> str:
    return f"losses-{precision}-{seed}"


def _means(losses: list[float]) -> list[float]:
    return [
        statistics.mean(losses[start : start + AT_ONCE]) for start in range(0, len(losses), AT_ONCE)
    ]

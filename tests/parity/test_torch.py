"""torch in a rank, compared with torchrun: its settings, its random numbers, and how its groups end."""

from __future__ import annotations

import itertools

import pytest
from parity.test_start import launch_with_torch

SEEN = [
    "num_threads",
    "num_interop_threads",
    "default_dtype",
    "grad",
    "deterministic",
    "cuda",
    "process_group",
    "sharing",
    "compiler_is_not_loaded",
    "numpy_threads",
]
DRAWN = ["torch", "randperm", "dropout", "layer", "shuffled", "worker_seeds", "numpy", "python"]
# (attempt, rank)
PROCESSES = list(itertools.product((0, 1), (0, 1)))


@pytest.fixture(scope="module")
def sides(launch):
    return [launch_with_torch(launch, side) for side in ("python", "windlass")]


def test_both_succeed_after_one_restart(sides):
    assert [side.code for side in sides] == [0, 0], sides[1].output


@pytest.mark.parametrize("name", SEEN)
def test_torch_observes(sides, name):
    torchrun, windlass = (side.seen("torch-1-1")["see"] for side in sides)
    assert windlass[name] == torchrun[name]


@pytest.mark.parametrize("name", DRAWN)
def test_seeded_stream_is_the_same_everywhere(sides, name):
    drawn = [side.seen(f"torch-{a}-{r}")["seeded"][name] for side in sides for a, r in PROCESSES]
    assert drawn == [drawn[0]] * 8


@pytest.mark.parametrize("name", [*DRAWN, "seed", "new_generator"])
@pytest.mark.parametrize("side", [0, 1], ids=["torchrun", "windlass"])
def test_unseeded_stream_differs_between_processes(sides, side, name):
    drawn = [str(sides[side].seen(f"torch-{a}-{r}")["unseeded"][name]) for a, r in PROCESSES]
    assert len(set(drawn)) == len(PROCESSES), drawn


def test_record_writes_the_error(sides):
    torchrun, windlass = (side.seen("record") for side in sides)
    assert windlass["message"] == torchrun["message"] == "ValueError: only the first time"
    assert (
        windlass["extraInfo"]["py_callstack"].splitlines()[-1] == "ValueError: only the first time"
    )


@pytest.mark.long
@pytest.mark.parametrize(("how", "nodes", "procs"), [("left", 1, 8), ("ddp", 2, 4)])
def test_group_of_eight_may_end_simultaneously(launch, how, nodes, procs):
    """Under torchrun, early ranks may exit while others are still connecting."""
    ran = launch("windlass", "group.py", how, nodes=nodes, procs=procs)
    assert ran.code == 0, ran.output
    assert "Traceback" not in ran.output

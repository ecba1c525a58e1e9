"""Training runs whose ranks are killed at random steps and that resume at the same and other world sizes.

Every step of every attempt must have the samples of the uninterrupted run. At the same world size its loss
must be equal bit for bit, and at another one within 1e-5.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from pathlib import Path

import pytest

import windlass as wl

STEPS = 18
STRATEGIES = ("ddp", "fsdp")
WORKER = Path(__file__).parent / "resume_phases.py"
KILLS = random.Random(2026)

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


def make_phases() -> dict[int, list[dict]]:
    """Return the phases by world size, in the order in which they run: 2, 4, 1."""
    phases: dict[int, list[dict]] = {2: [], 4: [], 1: []}
    for strategy in STRATEGIES:

        def add(world_size, case, *, kill_within=None, strategy=strategy, **more):
            is_killed = kill_within is not None
            kill_step = KILLS.randrange(*kill_within) if is_killed else None
            kill = {"kill_step": kill_step, "victim": KILLS.randrange(world_size)}
            phases[world_size].append(
                {
                    "case": f"{strategy}-{case}",
                    "strategy": strategy,
                    **(kill if is_killed else {}),
                    **more,
                }
            )

        add(2, "whole")
        add(2, "2-2", kill_within=(1, 10), is_async=strategy == "ddp")
        add(2, "2-2", kill_within=(10, STEPS))
        add(2, "2-2")
        add(2, "2-4", kill_within=(1, STEPS))
        add(4, "2-4", micro_batch=1)
        add(4, "4-1", kill_within=(1, STEPS))
        add(1, "4-1")
    return phases


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Return the folder in which all cases have written the records of their ranks."""
    folder = tmp_path_factory.mktemp("resume")
    for world_size, phases in make_phases().items():
        kills = sum("kill_step" in phase for phase in phases)
        attempts = wl.run(
            f"{WORKER}::run_phases",
            (str(folder), phases),
            procs=world_size,
            restarts=kills,
            quiet=True,
            timeout_s=900,
        )
        assert attempts == [kills] * world_size
    return folder


def read_steps(case: Path, key: str) -> dict[tuple[str, int], list]:
    """Return the records of ranks by (attempt, step), in rank order."""
    values = defaultdict(list)
    for path in sorted(case.glob("*.jsonl")):
        attempt = path.name.partition("-rank")[0]
        for line in path.read_text().splitlines():
            record = json.loads(line)
            if key in record:
                values[attempt, record["step"]].append(record[key])
    return values


def hash_ids(ids: list[list[int]]) -> str:
    """Hash the sample ids of a step over all ranks, each of which has a piece of the global batch."""
    return hashlib.sha256(json.dumps([i for piece in ids for i in piece]).encode()).hexdigest()


@pytest.mark.parametrize("case", ["2-2", "2-4", "4-1"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_step_has_the_samples_and_the_loss_of_the_uninterrupted_run(folder, strategy, case):
    whole = folder / f"{strategy}-whole"
    resumed = folder / f"{strategy}-{case}"
    expected = {step: hash_ids(ids) for (_, step), ids in read_steps(whole, "sample_ids").items()}
    assert sorted(expected) == list(range(1, STEPS + 1))
    seen = {}
    for (attempt, step), ids in read_steps(resumed, "sample_ids").items():
        is_cut = f"world-{len(ids)}" not in attempt  # a rank was killed before it wrote its record
        if not is_cut:
            assert hash_ids(ids) == expected[step], (attempt, step)
            seen[step] = attempt
    assert sorted(seen) == list(range(1, STEPS + 1))

    losses = {step: values[0] for (_, step), values in read_steps(whole, "loss").items()}
    resumed_losses = read_steps(resumed, "loss")
    assert {step for _, step in resumed_losses} == set(losses)
    for (attempt, step), values in resumed_losses.items():
        assert len(set(values)) == 1, "all ranks get the same loss"
        if attempt.startswith("world-2"):
            assert values[0] == losses[step], (attempt, step)
        assert values[0] == pytest.approx(losses[step], abs=1e-5), (attempt, step)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_learning_rate_validation_and_best_are_resumed(folder, strategy):
    whole = folder / f"{strategy}-whole"
    for key in ("lr", "validation"):
        expected = {step: values[0] for (_, step), values in read_steps(whole, key).items()}
        for case in ("2-2", "2-4", "4-1"):
            for (_, step), values in read_steps(folder / f"{strategy}-{case}", key).items():
                assert values[0] == pytest.approx(expected[step], abs=1e-5), (key, case, step)
    best = [json.loads(path.read_text())[0] for path in folder.glob(f"{strategy}-*/run/best.json")]
    assert len(best) == 4
    assert len({one["step"] for one in best}) == 1

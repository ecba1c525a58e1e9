"""TorchTrainer on two ranks: the same results as on one, and decisions on which ranks must agree."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest

import windlass as wl

FOLDER = Path(__file__).parent

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory) -> list[dict]:
    """Return the records of both ranks, by case."""
    folder = tmp_path_factory.mktemp("ranks")
    worker = f"{FOLDER / 'trainer_ranks.py'}::run_together"
    return wl.run(worker, (str(folder),), procs=2, quiet=True, timeout_s=500)


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict:
    """Return the record of one process without a launcher."""
    sys.path.append(str(FOLDER))
    try:
        import trainer_ranks

        return trainer_ranks.run_alone_or_together(str(tmp_path_factory.mktemp("alone")))
    finally:
        sys.path.remove(str(FOLDER))


CASES = (
    "ddp",
    "fsdp",
    "ddp accumulated",
    "fsdp accumulated",
    "weighted",
    "weighted fsdp",
    "recomputed",
    "learned loss",
    "learned loss fsdp",
    "split",
)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_train_as_one_process_does(ranks, alone, case):
    mine, theirs = ranks[0][case], ranks[1][case]
    assert mine == theirs
    assert len(mine["losses"]) == 12
    assert mine["losses"] == pytest.approx(alone[case]["losses"], abs=1e-5)
    assert mine["end"] == alone[case]["end"] == 12
    for validation, expected in zip(mine["validations"], alone[case]["validations"], strict=True):
        assert validation == pytest.approx(expected, abs=1e-5)


def test_three_ranks_resume_bit_for_bit(tmp_path):
    """DDP arranges its buckets before the first step, so sums are rounded alike after a resume."""
    worker = f"{FOLDER / 'trainer_ranks.py'}::resume_on_ranks"
    first, *others = wl.run(worker, (str(tmp_path),), procs=3, quiet=True, timeout_s=300)
    assert first["is_same"]
    assert first["steps"] == list(range(6, 13))
    assert all(rank == first for rank in others)
    assert "a further optimizer, self.other, but 3 ranks" in first["refused"]


def test_all_strategies_train_alike(alone, ranks):
    for case in ("fsdp", "ddp accumulated", "fsdp accumulated", "recomputed"):
        assert ranks[0][case]["losses"] == pytest.approx(alone["ddp"]["losses"], abs=1e-5)


def test_notice_to_one_rank_stops_all_after_the_same_step(ranks):
    ends = [rank["preempted"]["end"] for rank in ranks]
    assert ends == ["preempted 143 after 5"] * 2
    assert all(rank["preempted"]["checkpoints"] == [5] for rank in ranks)


def test_stop_request_of_one_rank_stops_all(ranks):
    assert [rank["stopped"]["end"] for rank in ranks] == [4, 4]


def test_clock_of_rank_0_decides_when_to_save(ranks):
    first, second = (rank["timed"]["checkpoints"] for rank in ranks)
    assert first == second
    assert 2 <= len(first) <= 6


def test_non_finite_gradients_of_one_rank_skip_the_step_on_all(ranks):
    for rank in ranks:
        assert rank["spiky"]["num_skipped"] == 1
        assert math.isnan(rank["spiky"]["losses"][5])
        assert math.isfinite(rank["spiky"]["losses"][12])


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_batch_norm_statistics_of_one_rank_are_validated_and_saved(ranks, strategy):
    for rank in ranks:
        case = rank[f"normed {strategy}"]
        assert len(case["whole"]) == 2
        assert case["resumed"] == case["whole"][1:]


def test_a_model_with_unused_parameters(ranks):
    assert [rank["half used"]["end"] for rank in ranks] == [12, 12]


def test_low_precision_with_shards(ranks, alone):
    assert ranks[0]["low"]["losses"] == pytest.approx(alone["ddp"]["losses"], rel=0.1)


def test_shape_becomes_a_device_mesh(ranks):
    expected = {"ddp": ("dp",), "fsdp": ("fsdp",), "tp=2": ("tp",)}
    assert [rank["meshes"] for rank in ranks] == [expected] * 2


def test_times_of_all_ranks_are_logged(ranks, alone):
    first, second = (rank["ddp"]["spread"] for rank in ranks)
    assert first == second
    assert 0 < first["rank_step_p50_min_s"] <= first["rank_step_p50_max_s"]
    assert "slowest_rank" not in first
    assert first["rank_memory_peak_max_bytes"] > 1e6
    assert alone["ddp"]["spread"] == {}


def test_restart_resumes_even_without_resume(tmp_path):
    """Each job ignores existing checkpoints. A later attempt of the same job resumes."""
    worker = f"{FOLDER / 'trainer_ranks.py'}::start_over"
    for begun in ([0, 4], [0, 4, 0, 4]):
        result = wl.run(worker, (str(tmp_path),), restarts=1, quiet=True, timeout_s=200)
        assert result == [begun]

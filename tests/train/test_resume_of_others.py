"""Losses of a resume with Hugging Face's Trainer and with itwinai, as the itwinai migration page states them.

`test_exact_resume` tests TorchTrainer under the same conditions. Skipped where the library is not installed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

import windlass as wl

WORKER = Path(__file__).parent / "other_trainers.py"
CUT = 12  # steps of the interrupted run, which are two epochs

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def read_ids(folder: Path, case: str) -> dict[int, list[int]]:
    """Return the samples of each step, over all ranks."""
    ids: dict[int, list[int]] = defaultdict(list)
    for path in folder.glob(f"{case}-rank-*.jsonl"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            ids[record["step"]] += record.get("ids", [])
    return {step: sorted(some) for step, some in ids.items() if some}


def read_losses(folder: Path, case: str) -> dict[int, float]:
    lines = (folder / f"{case}-rank-0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {record["step"]: record["loss"] for record in records if "loss" in record}


@pytest.fixture(scope="module")
def hf_results(tmp_path_factory) -> Path:
    pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    folder = tmp_path_factory.mktemp("hf")
    resume = {"resume": f"cut/checkpoint-{CUT}"}
    cases = {
        2: [
            {"case": "whole"},
            {"case": "cut", "stop": CUT},
            {"case": "on_2", **resume},
        ],
        1: [
            {"case": "on_1", **resume},
            {"case": "on_1_by_hand", "accumulate": 2, **resume},
        ],
        4: [
            {"case": "on_4", **resume},
            {"case": "on_4_by_hand", "rank_batch": 2, **resume},
        ],
    }
    for world_size, some in cases.items():
        target = f"{WORKER}::train_with_hf"
        wl.run(target, (str(folder), some), procs=world_size, quiet=True, timeout_s=300)
    return folder


def test_hf_is_exact_on_the_same_number_of_ranks(hf_results):
    whole, losses = read_ids(hf_results, "whole"), read_losses(hf_results, "whole")
    assert max(whole) == 18
    assert read_ids(hf_results, "on_2") == {s: ids for s, ids in whole.items() if s > CUT}
    assert read_losses(hf_results, "on_2") == {s: loss for s, loss in losses.items() if s > CUT}


def test_hf_repeats_samples_if_ranks_do_not_divide_them(hf_results):
    whole = read_ids(hf_results, "whole")
    epoch = [i for step in range(13, 19) for i in whole[step]]
    assert (len(epoch), len(set(epoch))) == (48, 44)


def test_hf_on_fewer_ranks_changes_batch_size_and_step_count(hf_results):
    whole, resumed = read_ids(hf_results, "whole"), read_ids(hf_results, "on_1")
    assert (min(resumed), max(resumed)) == (CUT + 1, 33)
    assert not any(ids == whole.get(step) for step, ids in resumed.items())


def test_hf_on_more_ranks_treats_the_training_as_done(hf_results):
    assert read_ids(hf_results, "on_4") == {}


def test_hf_with_adjusted_batches_differs_if_the_epoch_is_uneven(hf_results):
    rest = {step: ids for step, ids in read_ids(hf_results, "whole").items() if step > CUT}
    assert read_ids(hf_results, "on_4_by_hand") == rest
    on_1 = read_ids(hf_results, "on_1_by_hand")
    assert [step for step in rest if on_1[step] != rest[step]] == [18]


@pytest.fixture(scope="module")
def itwinai_results(tmp_path_factory) -> Path:
    pytest.importorskip("itwinai.torch.trainer")
    folder = tmp_path_factory.mktemp("itwinai")
    for case, resume in (("whole", None), ("on_2", str(folder / "whole/epoch_3"))):
        target, options = f"{WORKER}::train_with_itwinai", {"resume": resume}
        wl.run(target, (str(folder), case), kwargs=options, procs=2, quiet=True, timeout_s=120)
    return folder


def test_itwinai_loses_weights_and_best_loss(itwinai_results):
    whole, resumed = read_losses(itwinai_results, "whole"), read_losses(itwinai_results, "on_2")
    assert sorted(resumed) == list(range(25, 37))
    assert read_ids(itwinai_results, "on_2")[25] == read_ids(itwinai_results, "whole")[25]
    assert resumed[25] > 2 * whole[25]
    first = json.loads((itwinai_results / "on_2-rank-0.jsonl").read_text().splitlines()[0])
    assert first["best"] == float("inf")

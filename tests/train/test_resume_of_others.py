"""What a resume loses with Hugging Face's Trainer and with itwinai: what `docs/coming-from/itwinai.md` says.

Ours under the same treatment is in `test_exact_resume`. Skipped by name where the library is not installed.
"""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import pytest

import windlass as wl

WORKER = Path(__file__).parent / "other_trainers.py"
CUT = 12  # steps that the interrupted run made: two epochs

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


def read_ids(folder: Path, case: str) -> dict[int, list[int]]:
    """The samples of each step, over all ranks."""
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
def of_hf(tmp_path_factory) -> Path:
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


def test_hf_is_exact_on_as_many_ranks(of_hf):
    whole, losses = read_ids(of_hf, "whole"), read_losses(of_hf, "whole")
    assert max(whole) == 18
    assert read_ids(of_hf, "on_2") == {s: ids for s, ids in whole.items() if s > CUT}
    assert read_losses(of_hf, "on_2") == {s: loss for s, loss in losses.items() if s > CUT}


def test_hf_counts_samples_twice_where_ranks_do_not_divide_them(of_hf):
    whole = read_ids(of_hf, "whole")
    epoch = [i for step in range(13, 19) for i in whole[step]]
    assert (len(epoch), len(set(epoch))) == (48, 44)


def test_hf_on_fewer_ranks_trains_another_batch_and_more_steps(of_hf):
    whole, resumed = read_ids(of_hf, "whole"), read_ids(of_hf, "on_1")
    assert (min(resumed), max(resumed)) == (CUT + 1, 33)
    assert not any(ids == whole.get(step) for step, ids in resumed.items())


def test_hf_on_more_ranks_takes_the_training_for_done(of_hf):
    assert read_ids(of_hf, "on_4") == {}


def test_hf_with_batches_set_by_hand_differs_where_the_epoch_is_not_even(of_hf):
    rest = {step: ids for step, ids in read_ids(of_hf, "whole").items() if step > CUT}
    assert read_ids(of_hf, "on_4_by_hand") == rest
    on_1 = read_ids(of_hf, "on_1_by_hand")
    assert [step for step in rest if on_1[step] != rest[step]] == [18]


@pytest.fixture(scope="module")
def of_itwinai(tmp_path_factory) -> Path:
    pytest.importorskip("itwinai.torch.trainer")
    folder = tmp_path_factory.mktemp("itwinai")
    for case, resume in (("whole", None), ("on_2", str(folder / "whole/epoch_3"))):
        target, options = f"{WORKER}::train_with_itwinai", {"resume": resume}
        wl.run(target, (str(folder), case), kwargs=options, procs=2, quiet=True, timeout_s=120)
    return folder


def test_itwinai_forgets_the_weights_and_the_best(of_itwinai):
    whole, resumed = read_losses(of_itwinai, "whole"), read_losses(of_itwinai, "on_2")
    assert sorted(resumed) == list(range(25, 37))
    assert read_ids(of_itwinai, "on_2")[25] == read_ids(of_itwinai, "whole")[25]
    assert resumed[25] > 2 * whole[25]
    first = json.loads((of_itwinai / "on_2-rank-0.jsonl").read_text().splitlines()[0])
    assert first["best"] == float("inf")

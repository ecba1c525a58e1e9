"""Checkpoints of one process without a launcher: exact restoration, and refusal of damaged files."""

from __future__ import annotations

import json
import logging
import random
import resource

import pytest
import torch
from torch import nn
from toy_training import fill, make_state, same_state, train
from train.rounded_momentum import Rounded, RoundedMomentum

from windlass.errors import EngineError, SpecError
from windlass.train.checkpoint.checkpoints import Checkpoints


@pytest.fixture
def checkpoints(tmp_path, alone):
    return Checkpoints(tmp_path / "run", is_async=False, context=alone)


def damage(path):
    """Change one byte in the middle of a file and keep its size."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def test_training_resumes_bit_for_bit(checkpoints):
    state = make_state()
    train(state, num_steps=3)
    checkpoints.save(state, step=3, facts={"seed": 7, "best": 0.5}, epoch=1)
    train(state, num_steps=2)  # its noise comes from the generators, which are saved too
    fresh = make_state(seed=1)
    loaded = checkpoints.load(fresh)
    train(fresh, num_steps=2)
    assert (loaded.step, loaded.epoch, loaded.facts["best"]) == (3, 1, 0.5)
    assert loaded.is_rng_restored
    assert same_state(state, fresh)


def test_load_without_checkpoints_returns_none(checkpoints):
    assert checkpoints.load(make_state()) is None
    assert checkpoints.latest is None
    assert checkpoints.best is None


def test_the_layout(checkpoints, tmp_path):
    checkpoints.save(make_state(), step=4, facts={}, epoch=2)
    run = tmp_path / "run"
    names = [".lock", ".owner.json", "epoch-2", "latest", "step-4"]
    assert sorted(path.name for path in run.iterdir()) == names
    assert {path.name for path in (run / "epoch-2" / "rank-0").iterdir()} == {"0.distcp", "rng.pt"}
    manifest = json.loads((run / "latest" / "manifest.json").read_text())
    assert (
        manifest["files"]["rank-0/0.distcp"]["size"]
        == (run / "step-4/rank-0/0.distcp").stat().st_size
    )


def test_torch_tools_read_checkpoints(checkpoints, tmp_path):
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    state = make_state()
    checkpoints.save(state, step=1, facts={})
    dcp_to_torch_save(tmp_path / "run/step-1", tmp_path / "all.pt")
    table = torch.load(tmp_path / "all.pt", weights_only=True)
    assert torch.equal(table["model.0.weight"], state["model"][0].weight)


def test_an_optimizer_without_state_is_saved_and_loaded(checkpoints):
    checkpoints.save(make_state(), step=0, facts={})
    used = make_state()
    train(used, num_steps=1)
    checkpoints.load(used)
    assert not used["optimizer"].state  # as before the first step


def test_parameters_without_gradients_are_saved(checkpoints):
    state = make_state()
    state["model"][0].requires_grad_(False)
    train(state, num_steps=2)
    checkpoints.save(state, step=2, facts={})
    fresh = make_state()
    checkpoints.load(fresh)
    assert (
        len(fresh["optimizer"].state)
        == len(state["optimizer"].state)
        < len(list(fresh["model"].parameters()))
    )


def test_moments_keep_their_own_precision(checkpoints):
    state = make_state()
    train(state, num_steps=1)
    for values in state["optimizer"].state.values():
        values["exp_avg"] = values["exp_avg"].bfloat16()
    checkpoints.save(state, step=1, facts={})
    fresh = make_state()
    checkpoints.load(fresh)
    moments = next(iter(fresh["optimizer"].state.values()))
    assert (moments["exp_avg"].dtype, moments["exp_avg_sq"].dtype) == (
        torch.bfloat16,
        torch.float32,
    )


def test_optimizer_keeps_its_own_implementation_flags(checkpoints):
    """A run that began on a CPU can resume on a GPU with a fused optimizer."""
    state = make_state()
    train(state, num_steps=1)
    state["optimizer"].param_groups[0].update(foreach=False, lr=0.5)
    checkpoints.save(state, step=1, facts={})
    fresh = make_state()
    fresh["optimizer"].param_groups[0].update(fused=True, foreach=None)
    checkpoints.load(fresh)
    (group,) = fresh["optimizer"].param_groups
    assert (group["fused"], group["foreach"], group["lr"]) == (True, None, 0.5)


def test_tensor_subclass_moments_are_restored(checkpoints):
    states = [make_state(seed=seed) for seed in (0, 1)]
    for state in states:
        state["optimizer"] = RoundedMomentum(state["model"].parameters())
        state["schedule"] = torch.optim.lr_scheduler.StepLR(state["optimizer"], step_size=2)
    state, fresh = states
    train(state, num_steps=3)
    checkpoints.save(state, step=3, facts={})
    train(state, num_steps=2)
    checkpoints.load(fresh)
    moments = [values["moment"] for values in fresh["optimizer"].state.values()]
    assert {(type(moment), moment.codes.dtype) for moment in moments} == {(Rounded, torch.int8)}
    train(fresh, num_steps=2)
    theirs = [values["moment"] for values in state["optimizer"].state.values()]
    ours = [values["moment"] for values in fresh["optimizer"].state.values()]
    assert all(torch.equal(a.codes, b.codes) for a, b in zip(theirs, ours, strict=True))
    weights = fresh["model"].state_dict()
    assert all(torch.equal(v, weights[name]) for name, v in state["model"].state_dict().items())


def test_wrappers_leave_no_trace(checkpoints):
    plain = make_state()
    compiled = {"model": torch.compile(plain["model"], backend="eager")}
    checkpoints.save(compiled, step=1, facts={})
    fresh = make_state(seed=1)
    checkpoints.load({"model": fresh["model"]})
    assert torch.equal(fresh["model"][0].weight, plain["model"][0].weight)


def test_tied_weights_are_saved_once(checkpoints, tmp_path):
    def make_tied():
        model = nn.Sequential(nn.Embedding(1000, 64), nn.Linear(64, 1000, bias=False))
        model[1].weight = model[0].weight
        return model

    model, fresh = make_tied(), make_tied()
    checkpoints.save({"model": model}, step=1, facts={})
    checkpoints.load({"model": fresh})
    assert torch.equal(fresh[1].weight, model[0].weight)
    assert (tmp_path / "run/step-1/rank-0/0.distcp").stat().st_size < 1.2 * model[0].weight.nbytes


def test_objects_with_nested_tensors_and_plain_tensors(checkpoints):
    class Average:
        def __init__(self, value):
            self.table = {"mean": [torch.tensor(value)], "names": ("a", 1)}

        def state_dict(self):
            return self.table

        def load_state_dict(self, table):
            self.table = table

    number = torch.tensor([1.0, 2.0])
    checkpoints.save({"average": Average(3.0), "number": number}, step=1, facts={})
    fresh = {"average": Average(0.0), "number": torch.zeros(2)}
    checkpoints.load(fresh)
    assert fresh["average"].table == {"mean": [torch.tensor(3.0)], "names": ("a", 1)}
    assert torch.equal(fresh["number"], number)


def test_only_requested_parts_are_loaded(checkpoints):
    state = make_state()
    checkpoints.save(state, step=1, facts={})
    fresh = make_state(seed=1)
    checkpoints.load({"model": fresh["model"]})
    assert torch.equal(fresh["model"][0].weight, state["model"][0].weight)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda step: (step / "manifest.json").unlink(), "its save was interrupted"),
        (lambda step: (step / "manifest.json").write_text("{"), "cannot be read"),
        (lambda step: (step / "rank-0/0.distcp").write_bytes(b"x"), "1 bytes instead of"),
        (lambda step: (step / "rank-0/0.distcp").unlink(), "0.distcp is missing"),
        (lambda step: damage(step / "rank-0/0.distcp"), "its hash differs"),
        (lambda step: damage(step / ".metadata"), "its hash differs"),
    ],
    ids=["no manifest", "half a manifest", "truncated", "a file gone", "a bit flipped", "metadata"],
)
def test_damaged_checkpoint_is_named_and_the_previous_is_loaded(
    checkpoints, tmp_path, caplog, harm, message
):
    state = make_state()
    for step in (1, 2):
        checkpoints.save(fill(state, step), step=step, facts={})
    harm(tmp_path / "run/step-2")
    with caplog.at_level(logging.WARNING):
        loaded = checkpoints.load(state)
    assert loaded.step == 1
    assert torch.all(state["model"][0].weight == 1)
    assert "step-2" in caplog.text
    assert message in caplog.text


def test_damaged_checkpoint_does_not_count_as_kept(checkpoints, tmp_path):
    state = make_state()
    for step in (1, 2):
        checkpoints.save(state, step=step, facts={})
    damage(tmp_path / "run/step-2/rank-0/0.distcp")
    assert checkpoints.load(state).damaged == {2}
    checkpoints.save(state, step=3, facts={})
    damage(tmp_path / "run/step-3/rank-0/0.distcp")
    assert checkpoints.load(state).step == 1
    checkpoints.save(state, step=3, facts={})  # saved again, this time undamaged
    assert checkpoints.load(state).step == 3
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*")) == ["step-1", "step-3"]


def test_damaged_checkpoint_stays_damaged_when_saving_it_again_fails(checkpoints, tmp_path):
    state = make_state()
    for step in (1, 2):
        checkpoints.save(state, step=step, facts={})
    damage(tmp_path / "run/step-2/rank-0/0.distcp")
    checkpoints.load(state)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))  # simulates a full disk
    try:
        with pytest.raises(EngineError, match="a checkpoint was not saved: step-2: OSError"):
            checkpoints.save(state, step=2, facts={})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    checkpoints.save(state, step=3, facts={})
    assert sorted(path.name for path in (tmp_path / "run").glob("step-*")) == ["step-1", "step-3"]


def test_only_damaged_checkpoints_is_an_error(checkpoints, tmp_path):
    checkpoints.save(make_state(), step=1, facts={})
    damage(tmp_path / "run/step-1/rank-0/0.distcp")
    with pytest.raises(SpecError, match=r"no checkpoint in .* can be used: step-1: .*hash differs"):
        checkpoints.load(make_state())


def test_checkpoint_of_another_model_is_named(checkpoints):
    checkpoints.save(make_state(width=8), step=1, facts={})
    with pytest.raises(SpecError, match=r"model\.0\.bias is \[8\], here \[16\]"):
        checkpoints.load(make_state(width=16))


def test_checkpoint_of_another_optimizer_is_refused(checkpoints):
    state = make_state()
    train(state, num_steps=1)
    checkpoints.save(state, step=1, facts={})
    other = torch.optim.SGD(state["model"].parameters(), lr=0.1)
    with pytest.raises(SpecError, match="the checkpoint's optimizer is not SGD"):
        checkpoints.load({**state, "optimizer": other})


def test_state_with_unsaved_entries_is_refused(checkpoints):
    state = make_state()
    checkpoints.save({"model": state["model"]}, step=1, facts={})
    with pytest.raises(SpecError, match="it has no 'optimizer'"):
        checkpoints.load(state)


def test_refused_checkpoint_leaves_the_model_unchanged(checkpoints):
    checkpoints.save(make_state(width=8), step=1, facts={})
    state = make_state(width=16)
    before = state["model"][0].weight.clone()
    with pytest.raises(SpecError):
        checkpoints.load(state)
    assert torch.equal(state["model"][0].weight, before)


def test_step_is_loaded_by_number(checkpoints):
    state = make_state()
    for step in (1, 2):
        checkpoints.save(fill(state, step), step=step, facts={})
    assert checkpoints.load(state, step=1).step == 1
    with pytest.raises(SpecError, match=r"step-3 not found [\s\S]*step-1, step-2"):
        checkpoints.load(state, step=3)


def test_last_save_is_newest_after_loading_an_earlier_step(tmp_path, alone):
    checkpoints = Checkpoints(tmp_path, is_async=False, keep=3, context=alone)
    state = make_state()
    for step in (10, 20):
        checkpoints.save(fill(state, step), step=step, facts={})
    checkpoints.load(state, step=10)
    checkpoints.save(fill(state, 15), step=15, facts={})
    assert checkpoints.load(state).step == checkpoints.latest == 15


def test_second_save_of_a_step_replaces_the_first(checkpoints, tmp_path):
    state = make_state()
    checkpoints.save(fill(state, 1), step=5, facts={"try": 1})
    checkpoints.save(fill(state, 2), step=5, facts={"try": 2})
    assert checkpoints.load(state).facts == {"try": 2}
    assert torch.all(state["model"][0].weight == 2)
    assert sorted(path.name for path in (tmp_path / "run").glob("[!.]*")) == ["latest", "step-5"]


def test_facts_must_be_json(checkpoints):
    with pytest.raises(SpecError, match="must be JSON-serializable"):
        checkpoints.save(make_state(), step=1, facts={"loss": torch.tensor(1.0)})


def test_at_another_world_size_generators_start_from_the_seed(checkpoints, tmp_path):
    checkpoints.save(make_state(), step=1, facts={"seed": 3})
    manifest = tmp_path / "run/step-1/manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "world_size": 8}))
    draws = []
    for _ in range(2):
        loaded = checkpoints.load(make_state())
        draws.append((random.random(), torch.rand(1).item()))
    assert not loaded.is_rng_restored
    assert draws[0] == draws[1]


def test_failed_save_reports_the_cause(tmp_path, alone):
    (tmp_path / "run").write_text("not a folder")
    checkpoints = Checkpoints(tmp_path / "run", is_async=False, context=alone)
    with pytest.raises(SpecError, match=r"cannot write to .*run: .*File exists"):
        checkpoints.save(make_state(), step=1, facts={})


def test_keep_must_be_positive(tmp_path, alone):
    with pytest.raises(SpecError, match="at least 1"):
        Checkpoints(tmp_path, keep=0, context=alone)


def test_process_local_storage_is_written_in_process(alone):
    """A writer process would write to its own memory:// store, which ends with the process."""
    checkpoints = Checkpoints("memory://of-this-process/run", context=alone)
    checkpoints.save(make_state(), step=2, facts={})
    checkpoints.close()
    assert checkpoints.latest == 2

"""Checkpoints behind fsspec URLs. They work as in a folder, and the manifest makes a checkpoint complete."""

from __future__ import annotations

import uuid

import pytest
import torch
from toy_training import fill, make_state

from windlass.errors import SpecError
from windlass.train.checkpoint.checkpoint_storage import open_storage
from windlass.train.checkpoint.checkpoints import Checkpoints

pytest.importorskip("fsspec")


@pytest.fixture(params=["memory", "file"])
def url(request, tmp_path):
    return f"memory://{uuid.uuid4()}/run" if request.param == "memory" else f"file://{tmp_path}/run"


def test_saved_kept_marked_and_loaded(url, alone):
    checkpoints = Checkpoints(url, is_async=False, keep=2, context=alone)
    state = make_state()
    for step in (1, 2, 3, 4):
        checkpoints.save(fill(state, step), step=step, facts={"at": step}, epoch=step)
        if step == 2:
            checkpoints.mark_best(2, 1.5)
    storage = open_storage(url)
    assert [name for name in storage.names() if name.startswith("step")] == [
        "step-2",
        "step-3",
        "step-4",
    ]
    assert {name: storage.target(name) for name in ("latest", "best", "epoch-4")} == {
        "latest": "step-4",
        "best": "step-2",
        "epoch-4": "step-4",
    }
    loaded = checkpoints.load(fill(state, 0))
    assert (loaded.step, loaded.facts) == (4, {"at": 4})
    assert torch.all(state["model"][0].weight == 4)


def test_checkpoint_without_manifest_is_ignored(url, alone, caplog):
    checkpoints = Checkpoints(url, is_async=False, context=alone)
    state = make_state()
    for step in (1, 2):
        checkpoints.save(fill(state, step), step=step, facts={})
    open_storage(url).remove("step-2/manifest.json")
    assert checkpoints.load(state).step == 1
    assert "step-2 cannot be used: it has no manifest.json" in caplog.text


def test_remains_of_a_failed_save_are_removed_by_the_next(url, alone):
    checkpoints = Checkpoints(url, is_async=False, context=alone)
    for step in (1, 2):
        checkpoints.save(make_state(), step=step, facts={})
    checkpoints.close()
    open_storage(url).remove("step-2/manifest.json")
    Checkpoints(url, is_async=False, context=alone).save(make_state(), step=3, facts={})
    names = [name for name in open_storage(url).names() if name.startswith("step-")]
    assert names == ["step-1", "step-3"]


def test_interrupted_first_save_is_not_a_checkpoint(url, alone, caplog):
    checkpoints = Checkpoints(url, is_async=False, context=alone)
    state = make_state()
    checkpoints.save(state, step=1, facts={})
    open_storage(url).remove("step-1/manifest.json")
    assert checkpoints.load(state) is None
    assert "step-1 cannot be used: it has no manifest.json" in caplog.text
    checkpoints.save(fill(state, 2), step=2, facts={})
    assert checkpoints.load(state).step == 2


def test_an_unknown_scheme_is_named():
    with pytest.raises(SpecError, match="cannot open nosuch://bucket/run"):
        open_storage("nosuch://bucket/run")

"""Framework from a keyword, a variable or a file, and its effect on the plan."""

from __future__ import annotations

import pytest
import rank_work

import windlass as wl
from windlass.client.compute.nodes.distribution import default_framework
from windlass.client.jobs.run import prepare_job
from windlass.errors import SpecError

TORCH = ("torch",)


def plan_of(target, **flags):
    return prepare_job(target, detach=False, flags=flags).plan


@pytest.fixture
def train(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("import torch\n")
    return "train.py"


@pytest.mark.parametrize(
    ("flags", "framework", "preload", "num_ranks"),
    [
        ({}, "pytorch", TORCH, 4),
        ({"framework": "pytorch"}, "pytorch", TORCH, 4),
        ({"framework": "spmd"}, "spmd", (), 4),
        ({"framework": "spmd", "preload": ["torch"]}, "spmd", TORCH, 4),
        ({"framework": "command"}, "command", (), 2),
    ],
)
def test_a_script(train, flags, framework, preload, num_ranks):
    plan = plan_of(train, nodes=2, procs=2, **flags)
    assert (plan.framework, plan.preload, plan.num_ranks) == (framework, preload, num_ranks)


@pytest.mark.parametrize("asked", [None, "pytorch", "spmd", "command"])
def test_command_stays_a_command(train, asked):
    plan = plan_of(["sh", "-c", "true"], procs=2, framework=asked)
    assert (plan.framework, plan.num_ranks) == ("command", 2)


def test_a_variable_and_a_file(train, tmp_path, monkeypatch):
    (tmp_path / "windlass.toml").write_text('framework = "spmd"\n')
    assert (plan_of(train).framework, default_framework()) == ("spmd", "spmd")
    monkeypatch.setenv("WINDLASS_FRAMEWORK", "command")
    assert (plan_of(train).framework, default_framework()) == ("command", "command")
    assert plan_of(train, framework="pytorch").framework == "pytorch"


def test_computes_use_the_setting_unless_given(monkeypatch):
    assert wl.Compute().distribute(workers=2).spread.framework == "pytorch"
    monkeypatch.setenv("WINDLASS_FRAMEWORK", "spmd")
    assert wl.Compute().distribute(workers=2).spread.framework == "spmd"
    assert wl.Compute().distribute("pytorch", workers=2).spread.framework == "pytorch"
    with pytest.raises(SpecError, match="no keyword 'framework'") as caught:
        wl.Compute(framework="spmd")
    assert "distribute(framework='spmd')" in caught.value.hint


@pytest.mark.parametrize("start", [wl.run, wl.submit])
def test_misspelled(start, home):
    with pytest.raises(SpecError, match="unknown framework 'smpd'") as caught:
        start(rank_work.rank, framework="smpd")
    assert "did you mean 'spmd'" in caught.value.hint
    assert not home.exists()


def test_procs_with_a_framework_are_reported(train):
    notes = prepare_job(train, detach=False, flags={"procs": 4, "framework": "command"}).notes
    assert notes == ("framework command: one process per node, not 4",)
    assert prepare_job(train, detach=False, flags={"gpus": 4, "framework": "command"}).notes == ()


def read_place():
    import os
    import sys

    keys = ("RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
    return [
        *(os.environ[key] for key in keys),
        os.environ.get("PET_NNODES"),
        "torch" in sys.modules,
    ]


def test_run_and_submit():
    run = wl.run(read_place, nodes=2, framework="spmd", quiet=True)
    assert run == [["0", "1", "False", None, False], ["1", "1", "False", None, False]]
    job = wl.submit(read_place, nodes=2, procs=2, framework="command")
    job.wait(60)
    assert job.results() == [["0", "1", "False", "2", False], ["1", "1", "False", "2", False]]

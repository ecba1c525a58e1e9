"""From a target and keywords to a plan: ids, specs, what is preloaded; nothing is started."""

from __future__ import annotations

import re

import pytest
import rank_work
from hypothesis import given, settings
from spec.strategies import works

from windlass.client.run import make_job_id, prepare
from windlass.client.target import Target
from windlass.errors import SpecError
from windlass.spec.work import Command, Function, Module, Script


@settings(deadline=None, max_examples=300)
@given(works)
def test_any_work_has_a_valid_id(work):
    job_id = make_job_id(Target(work=work))
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,22}[a-z0-9])?-[a-z2-9]{5}", job_id)
    assert len(f"{job_id}-node-999") <= 63  # what Kubernetes takes for a name


@pytest.mark.parametrize(
    ("work", "name"),
    [
        (Script(path="train.py"), "train"),
        (Script(path="/a/b/My_Train.v2.py", args=("x",)), "my-train-v2"),
        (Script(path="a script.py"), "a-script"),
        (Function(name="train"), "train"),
        (Function(name="outer.<locals>.train"), "train"),
        (Function(name="Trainer.fit"), "fit"),
        (Function(name="outer.<locals>.<lambda>"), "lambda"),
        (Function(name="main", file="/a/train.py"), "main"),
        (Module(name="pkg.mod", args=("x",)), "mod"),
        (Command(argv=("/usr/bin/python3", "-c", "x")), "python3"),
        (Command(argv=("./run.sh",)), "run"),
        (Function(name="été"), "t"),
        (Function(name="___"), "job"),
        (Function(name="x" * 100), "x" * 24),
    ],
    ids=str,
)
def test_an_id_reads_like_the_work(work, name):
    assert make_job_id(Target(work=work)).rpartition("-")[0] == name


def test_two_ids_differ():
    target = Target(work=Script(path="train.py"))
    assert len({make_job_id(target) for _ in range(200)}) == 200


def test_preparing_starts_nothing(home):
    prepared = prepare(
        rank_work.rank,
        detach=False,
        flags={
            "nodes": 2,
            "procs": 3,
            "env": {"A": "b"},
            "restarts": 4,
            "timeout_s": "1m",
            "name": "my run",
        },
    )
    plan = prepared.plan
    assert (len(plan.nodes), plan.num_ranks, plan.restarts, plan.timeout_s) == (2, 6, 4, 60.0)
    assert (plan.name, plan.env["A"], plan.detach, plan.engine) == ("my run", "b", False, "local")
    assert prepared.payload
    assert not home.exists()


@pytest.mark.parametrize(
    ("target", "flags", "preload"),
    [
        (["sh", "-c", "true"], {}, ()),
        (["sh", "-c", "true"], {"preload": ["numpy"]}, ()),
        ("train.py", {}, ("torch",)),
        ("train.py", {"start": "spawn"}, ()),
        ("train.py", {"preload": ["numpy"]}, ("numpy",)),
        ("train.py", {"preload": []}, ()),
        ("plain.py", {}, ()),
        ("plain.py::main", {}, ()),
        ("-m mod", {}, ("torch",)),
    ],
    ids=str,
)
def test_what_is_preloaded(tmp_path, monkeypatch, target, flags, preload):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "plain.py").write_text("def main(): pass\n")
    monkeypatch.chdir(tmp_path)
    assert prepare(target, detach=True, flags=flags).plan.preload == preload


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"nods": 2}, "there is no setting 'nods'"),
        ({"engine": "locl"}, "there is no engine 'locl'"),
        ({"env": {"A-B": "x"}}, "'A-B' is not a name"),
        ({"timeout_s": 0}, "--timeout must be more than 0"),
        ({"start": "thread"}, "--start must be one of"),
    ],
    ids=str,
)
def test_mistakes_are_told_before_anything_starts(home, flags, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        prepare(rank_work.rank, detach=True, flags=flags)
    assert not home.exists()

"""Plans from a target and keywords: ids, specs and preloaded modules. Nothing is started."""

from __future__ import annotations

import re

import pytest
import rank_work

import windlass as wl
from windlass.client.jobs.run import prepare_job
from windlass.errors import SpecError
from windlass.spec.work import Script


def test_preparing_starts_nothing(home):
    prepared = prepare_job(
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
def test_preloaded_modules(tmp_path, monkeypatch, target, flags, preload):
    (tmp_path / "train.py").write_text("import torch\n")
    (tmp_path / "plain.py").write_text("def main(): pass\n")
    monkeypatch.chdir(tmp_path)
    assert prepare_job(target, detach=True, flags=flags).plan.preload == preload


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (1, 1, 1)),
        ({"gpus": 8}, (1, 1, 8)),
        ({"gpus": 8, "procs": 2}, (1, 1, 2)),
        ({"nodes": "2:4"}, (2, 4, 1)),
        ({"nodes": 3}, (3, 3, 1)),
    ],
    ids=str,
)
def test_the_size_of_a_job(flags, expected):
    plan = prepare_job(rank_work.rank, detach=True, flags=flags).plan
    assert (plan.min_nodes, len(plan.nodes), plan.nodes[0].num_ranks) == expected


def test_local_nodes_need_no_image():
    plan = prepare_job(
        rank_work.rank, detach=True, flags={"image": "torch:1", "memory": "1Gi"}
    ).plan
    assert plan.pod is None
    assert (plan.lease_s, plan.join_timeout_s) == (5.0, 60.0)


def test_targets_in_the_image_are_not_checked_here():
    plan = prepare_job(["/app/train.py", "--lr", "1"], detach=True, flags={"in_image": True}).plan
    assert (plan.work, plan.cwd) == (Script(path="/app/train.py", args=("--lr", "1")), "")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"nodes": 0}, "--nodes must be at least 1"),
        ({"nods": 2}, "unknown setting 'nods'"),
        ({"engine": "locl"}, "unknown engine 'locl'"),
        ({"env": {"A-B": "x"}}, "invalid environment variable name 'A-B'"),
        ({"timeout_s": 0}, "--timeout must be more than 0"),
        ({"start": "thread"}, "--start must be one of"),
    ],
    ids=str,
)
def test_mistakes_are_reported_before_anything_starts(home, flags, says):
    with pytest.raises(SpecError, match=re.escape(says)):
        prepare_job(rank_work.rank, detach=True, flags=flags)
    assert not home.exists()


def add(a, x=1):
    return a + x


@pytest.mark.parametrize(
    ("call", "hint"),
    [
        (lambda: wl.run(add, 3), "wl.run(add, args=[3])"),
        (lambda: wl.run(add, "abc"), "wl.run(add, args=['abc'])"),
        (lambda: wl.submit(add, 3), "wl.run(add, args=[3])"),
        (lambda: wl.run(add, x=3), "wl.run(add, kwargs={'x': 3})"),
        (lambda: wl.run(add, [1], 2), "wl.run(add, kwargs={...})"),
        (lambda: wl.run(add, [1], node=2), "did you mean nodes?"),
    ],
)
def test_misplaced_function_arguments_have_a_hint(call, hint):
    with pytest.raises(SpecError) as caught:
        call()
    assert hint in caught.value.hint


@pytest.mark.parametrize("call", [wl.run, wl.submit])
def test_pod_settings_are_refused_without_pods(call, home):
    with pytest.raises(wl.SpecError, match="--memory is for pods, but the engine local has none"):
        call(len, [[1]], memory="1Gi")
    assert not (home / "jobs").exists()

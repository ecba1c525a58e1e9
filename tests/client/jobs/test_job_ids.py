"""Job ids are unique, and valid object names whatever the work is called."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import works

from windlass.agent.lead.calls.call_queue import KEPT_IDS
from windlass.client.jobs import job_ids
from windlass.client.jobs.job_ids import make_call_id, make_job_id, split_call
from windlass.spec.work import Command, Function, Module, Script


@settings(deadline=None, max_examples=300)
@given(works)
def test_any_work_has_a_valid_id(work):
    job_id = make_job_id(work)
    assert re.fullmatch(r"[a-z]([a-z0-9-]{0,22}[a-z0-9])?-[a-z2-9]{5}", job_id)


@settings(deadline=None, max_examples=300)
@given(works, st.text())
def test_any_name_makes_a_valid_id(work, name):
    job_id = make_job_id(work, name)
    assert re.fullmatch(r"[a-z]([a-z0-9-]*[a-z0-9])?-[a-z2-9]{5}", job_id)
    assert len(job_id) <= 45
    assert len(f"{job_id}-headless") <= 63  # a name that Kubernetes accepts for a Service


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("My Run", "my-run"),
        ("llama-3_8B.v2", "llama-3-8b-v2"),
        ("3d", "job-3d"),
        ("Größe", "groe"),
        ("日本", "train"),
        ("-", "train"),
        ("x" * 80, "x" * 39),
        ("a" * 38 + "-b", "a" * 38),
    ],
)
def test_job_id_contains_its_name(name, expected):
    assert make_job_id(Script(path="train.py"), name).rpartition("-")[0] == expected


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
        (Function(name="été"), "ete"),
        (Function(name="___"), "job"),
        (Function(name="x" * 100), "x" * 24),
    ],
    ids=str,
)
def test_id_resembles_the_work(work, name):
    assert make_job_id(work).rpartition("-")[0] == name


def test_two_ids_differ():
    work = Script(path="train.py")
    assert len({make_job_id(work) for _ in range(200)}) == 200


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("nodes-abcde.abcdefghjk", ("nodes-abcde", "abcdefghjk")),
        ("a.b.abc2345678", ("a.b", "abc2345678")),
        ("local://nodes-abcde.abcdefghjk", ("local://nodes-abcde", "abcdefghjk")),
        ("exp-v1.2", ("", "")),
        ("lr-0.001", ("", "")),
        ("nodes.ABCDEFGHJK", ("", "")),
        (".abcdefghjk", ("", "")),
        ("abcdefghjk", ("", "")),
    ],
)
def test_texts_that_could_be_calls(text, parts):
    assert split_call(text) == parts


def test_call_number_is_found_in_its_id():
    assert split_call(make_call_id("nodes-abcde"))[0] == "nodes-abcde"


def test_call_ids_are_unique_while_a_compute_remembers_them():
    """A call with a repeated id would be treated as a resent call, and would not run."""
    chances = len(job_ids._ALPHABET) ** len(split_call(make_call_id("nodes"))[1])
    assert 2 * KEPT_IDS * 1_000_000 / chances < 0.001

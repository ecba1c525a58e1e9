"""Plan, which depends only on its arguments and round-trips through JSON."""

from __future__ import annotations

import copy
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import facts, plans, specs, texts, times

from windlass import names
from windlass.errors import ProtocolError
from windlass.plan.plan import Facts, make_plan, read_plan, render_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script


@settings(deadline=None)
@given(specs, facts, texts, times)
def test_planning_is_pure(spec, world, job_id, now_s):
    before = copy.deepcopy((spec, world))
    first = make_plan(spec, job_id=job_id, now_s=now_s, facts=world)
    assert make_plan(spec, job_id=job_id, now_s=now_s, facts=world) == first
    assert (spec, world) == before
    first.env["SOMETHING"] = "else"  # the plan holds a copy of the arguments
    assert (spec, world) == before


@settings(deadline=None)
@given(plans())
def test_round_trip(plan):
    text = render_plan(plan)
    assert read_plan(text) == plan
    assert render_plan(read_plan(text)) == text
    json.loads(text, parse_constant=pytest.fail)  # NaN and Infinity are not JSON


@settings(deadline=None)
@given(plans())
def test_every_rank_has_a_node(plan):
    assert plan.num_ranks == sum(node.num_ranks for node in plan.nodes)
    for rank in range(plan.num_ranks):
        assert rank in plan.node_of(rank).ranks


def test_a_job_without_a_name_is_called_by_its_id():
    spec = JobSpec(work=Script(path="a.py"), nodes=2)
    plan = make_plan(spec, job_id="a-1", now_s=5.0, facts=Facts(environ={}))
    assert (plan.name, plan.nodes[1].name, plan.created_at_s) == ("a-1", "a-1-node-1", 5.0)


def a_plan(**fields):
    spec = JobSpec(work=Script(path="a.py"))
    plan = make_plan(spec, job_id="a-1", now_s=0, facts=Facts(environ={}))
    return json.dumps({**json.loads(render_plan(plan)), **fields})


def test_other_version_is_refused():
    with pytest.raises(ProtocolError, match="the plan has version 99") as caught:
        read_plan(a_plan(version=names.PROTOCOL_VERSION + 98))
    assert "same version" in caught.value.hint


def test_fields_of_a_newer_writer_are_ignored():
    assert read_plan(a_plan(color="blue")).job_id == "a-1"


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", "null", "3", '"text"', "{" * 9, "[" * 200_000]
)
def test_malformed_plan_is_refused(text):
    with pytest.raises(ProtocolError):
        read_plan(text)


@settings(deadline=None)
@given(st.sampled_from(["nodes", "work", "env", "restarts", "grace_s"]))
def test_malformed_field_is_refused(name):
    with pytest.raises(ProtocolError):
        read_plan(a_plan(**{name: "broken"}))

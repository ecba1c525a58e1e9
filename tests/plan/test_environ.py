"""The environment of ranks: torchrun's variables, consistent over all ranks; the user's own win."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import envs, facts, plans, specs

from windlass import names
from windlass.plan.environ import Meeting, make_job_env, make_rank_env
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job import JobSpec
from windlass.spec.work import Script


def rank_envs(plan, attempt=0):
    return [
        make_rank_env(plan, rank, attempt=attempt, meeting=Meeting(address="10.0.0.1", port=29500))
        for rank in range(plan.num_ranks)
    ]


@settings(deadline=None)
@given(plans(), st.integers(0, 9))
def test_rank_environments_are_consistent(plan, attempt):
    found = rank_envs(plan, attempt)
    numbers = [{key: int(env[key]) for key in NUMBERS} for env in found]
    world, groups = plan.num_ranks, len(plan.nodes)
    assert [n["RANK"] for n in numbers] == list(range(world))
    assert {n["WORLD_SIZE"] for n in numbers} == {world}
    assert {n["GROUP_WORLD_SIZE"] for n in numbers} == {groups}
    assert len({(n["GROUP_RANK"], n["LOCAL_RANK"]) for n in numbers}) == world
    for n in numbers:
        assert 0 <= n["LOCAL_RANK"] < n["LOCAL_WORLD_SIZE"]
        assert 0 <= n["GROUP_RANK"] < groups
        assert n["RANK"] == plan.nodes[n["GROUP_RANK"]].first_rank + n["LOCAL_RANK"]
        assert (n["ROLE_RANK"], n["ROLE_WORLD_SIZE"]) == (n["RANK"], world)
        assert n["TORCHELASTIC_RESTART_COUNT"] == attempt
    per_node = Counter(n["GROUP_RANK"] for n in numbers)
    assert all(per_node[n["GROUP_RANK"]] == n["LOCAL_WORLD_SIZE"] for n in numbers)
    assert {(env["MASTER_ADDR"], env["MASTER_PORT"]) for env in found} == {("10.0.0.1", "29500")}
    assert {env["TORCHELASTIC_USE_AGENT_STORE"] for env in found} == {"False"}
    assert [env["WINDLASS_NODE_NAME"] for env in found] == [
        plan.node_of(r).name for r in range(world)
    ]


NUMBERS = [
    "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT",
]  # fmt: skip


@settings(deadline=None)
@given(specs, facts)
def test_the_user_s_own_variables_win(spec, world):
    plan = make_plan(spec, job_id="j", now_s=0, facts=world)
    assert {key: plan.env[key] for key in spec.env} == dict(spec.env)


@settings(deadline=None)
@given(specs, envs, envs)
def test_what_the_engine_adds_gives_way(spec, environ, facts_env):
    env = make_job_env(spec, job_id="j", name="n", facts_env=facts_env, environ=environ)
    ours = {
        names.JOB_ID,
        names.JOB_NAME,
        names.TORCHELASTIC_RUN_ID,
        names.TORCHELASTIC_MAX_RESTARTS,
    }
    for key, value in facts_env.items():
        if key in environ and key not in spec.env and key not in ours:
            assert key not in env
        elif key not in spec.env and key not in environ:
            assert env[key] == value


@pytest.mark.parametrize(
    ("procs", "environ", "env", "threads"),
    [
        (1, {}, {}, None),
        (2, {}, {}, "1"),
        (2, {"OMP_NUM_THREADS": "4"}, {}, None),  # inherited as it is
        (2, {}, {"OMP_NUM_THREADS": "3"}, "3"),
        (2, {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "3"}, "3"),
    ],
)
def test_threads_as_torchrun_decides(procs, environ, env, threads):
    spec = JobSpec(work=Script(path="a.py"), procs=procs, env=env)
    plan = make_plan(spec, job_id="j", now_s=0, facts=Facts(environ=environ))
    assert plan.env.get("OMP_NUM_THREADS") == threads


def test_the_job_s_own_variables():
    spec = JobSpec(work=Script(path="a.py"), name="my run", restarts=3)
    env = make_plan(spec, job_id="a-1", now_s=0, facts=Facts(environ={})).env
    assert env[names.JOB_ID] == env[names.TORCHELASTIC_RUN_ID] == "a-1"
    assert env[names.JOB_NAME] == "my run"
    assert env[names.TORCHELASTIC_MAX_RESTARTS] == "3"
    assert env[names.TORCH_NCCL_ASYNC_ERROR_HANDLING] == "1"


@settings(deadline=None)
@given(plans())
def test_a_store_that_is_there_already_is_used(plan):
    meeting = Meeting(address="10.0.0.1", port=29500, has_store=True)
    env = make_rank_env(plan, 0, attempt=0, meeting=meeting)
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"

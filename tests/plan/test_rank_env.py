"""Environment of ranks. It has torchrun's variables, equal over all ranks, and the user's variables win."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from spec.strategies import envs, facts, plans, specs

from windlass import names
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import (
    Facts,
    RankRendezvous,
    make_job_env,
    make_plan,
    make_rank_env,
    read_indexes,
    render_indexes,
)
from windlass.spec.job_spec import JobSpec
from windlass.spec.pod_spec import PodSpec
from windlass.spec.work import Command, Script


def rank_envs(plan, attempt=0):
    make_env = load_framework(plan.framework).make_env
    rendezvous = RankRendezvous(address="10.0.0.1", port=29500)
    return [
        make_env(plan, rank, attempt=attempt, rendezvous=rendezvous)
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
def test_user_variables_win(spec, world):
    plan = make_plan(spec, job_id="j", now_s=0, facts=world)
    assert {key: plan.env[key] for key in spec.env} == dict(spec.env)


@settings(deadline=None)
@given(specs, envs, envs)
def test_engine_variables_are_overridden(spec, environ, facts_env):
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
        (2, {"OMP_NUM_THREADS": "4"}, {}, None),  # inherited unchanged
        (2, {}, {"OMP_NUM_THREADS": "3"}, "3"),
        (2, {"OMP_NUM_THREADS": "4"}, {"OMP_NUM_THREADS": "3"}, "3"),
    ],
)
def test_thread_count_matches_torchrun(procs, environ, env, threads):
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
def test_existing_store_is_used(plan):
    rendezvous = RankRendezvous(address="10.0.0.1", port=29500, has_store=True)
    env = make_rank_env(plan, 0, attempt=0, rendezvous=rendezvous)
    assert env["TORCHELASTIC_USE_AGENT_STORE"] == "True"


def make_command_plan(*argv, env=None, **spec):
    spec = JobSpec(work=Command(argv=argv), env=env or {}, **spec)
    return make_plan(spec, job_id="j", now_s=0, facts=Facts(environ={}))


def test_command_gets_the_variables_that_torchrun_reads():
    for node, env in enumerate(rank_envs(make_command_plan("torchrun", "t.py", nodes=2))):
        assert {key: value for key, value in env.items() if "PET" in key or "NODE" in key} == {
            "PET_NNODES": "2",
            "PET_NODE_RANK": str(node),
            "PET_MASTER_ADDR": "10.0.0.1",
            "PET_MASTER_PORT": "29500",
            "NNODES": "2",
            "NODE_RANK": str(node),
            "WINDLASS_NODE_NAME": f"j-node-{node}",
            "WINDLASS_NODE_INDEXES": "2",
        }


def test_command_without_a_world_gets_no_variables():
    env = rank_envs(make_command_plan("torchrun", "--standalone", "t.py", nodes=2))[1]
    assert env["NODE_RANK"] == "1"
    assert not [key for key in env if key.startswith("PET_")]


def test_user_variables_win_over_those_of_a_command():
    plan = make_command_plan("torchrun", env={"PET_NNODES": "9", "NPROC_PER_NODE": "5"})
    assert "PET_NNODES" not in rank_envs(plan)[0]
    assert (plan.env["PET_NNODES"], plan.env["NPROC_PER_NODE"]) == ("9", "5")


@pytest.mark.parametrize(
    ("argv", "asked", "count"),
    [
        (["torchrun", "--nproc_per_node=8", "t.py"], {}, "8"),
        (["torchrun", "--nproc-per-node", "4", "t.py"], {}, "4"),
        (["sh", "-c", "cd x && torchrun --nproc_per_node=8 t.py"], {}, "8"),
        (["torchrun", "--nproc_per_node=auto", "t.py"], {"procs": 3}, "3"),
        (["torchrun", "--nproc_per_node=8"], {"pod": PodSpec(image="i", gpus=2)}, "2"),
        (["python", "t.py"], {"procs": 2}, "2"),
    ],
    ids=str,
)
def test_number_of_processes_of_a_command(argv, asked, count):
    assert make_command_plan(*argv, **asked).env["NPROC_PER_NODE"] == count


def test_other_work_gets_no_process_count():
    plan = make_plan(
        JobSpec(work=Script(path="t.py")), job_id="j", now_s=0, facts=Facts(environ={})
    )
    assert not {"NNODES", "PET_NNODES", "NPROC_PER_NODE"} & {*plan.env, *rank_envs(plan)[0]}


@given(st.lists(st.integers(0, 50), min_size=1, unique=True).map(sorted))
def test_node_indexes_are_read_as_they_were_written(indexes):
    assert read_indexes(render_indexes(indexes)) == indexes


def test_ranks_know_their_grace_and_their_output_folder():
    spec = JobSpec(work=Script(path="train.py"), grace_s=2.5)
    facts = Facts(environ={}, jobs_folder="/home/me/jobs")
    env = make_plan(spec, job_id="j1", now_s=0.0, facts=facts).env
    assert (env[names.GRACE], env[names.OUT]) == ("2.5", "/home/me/jobs/j1/out")
    assert names.OUT not in make_plan(spec, job_id="j1", now_s=0.0, facts=Facts(environ={})).env


@pytest.mark.parametrize("is_asked", [True, False])
def test_output_folder_of_the_user_wins(is_asked):
    own = {names.OUT: "/mine"}
    spec = JobSpec(work=Script(path="train.py"), env=own if is_asked else {})
    facts = Facts(environ={} if is_asked else own, jobs_folder="/home/me/jobs")
    env = make_plan(spec, job_id="j1", now_s=0.0, facts=facts).env
    assert {**facts.environ, **env}[names.OUT] == "/mine"

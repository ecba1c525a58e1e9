"""Records of the frameworks: ranks per node, variables, rendezvous and blame, and the table of names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.errors import SpecError
from windlass.frameworks.framework import (
    FRAMEWORKS,
    check_framework,
    choose_framework,
    load_framework,
)
from windlass.plan.plan import Facts, RankRendezvous, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls, Command, Function, Module, Script
from windlass.wire.results import ErrorInfo

RENDEZVOUS = RankRendezvous(address="10.0.0.1", port=29500, has_store=True)
NODE_VARIABLES = {"NNODES", "NODE_RANK", "PET_NNODES", "PET_NODE_RANK"}
EVERYWHERE = [name for name in FRAMEWORKS if load_framework(name).cluster is None]


def make_env(framework, work, rank=3):
    spec = JobSpec(work=work, framework=framework, nodes=2, procs=2)
    plan = make_plan(spec, job_id="j", now_s=0.0, facts=Facts(environ={}))
    assert plan.framework == framework
    return load_framework(framework).make_env(plan, rank, attempt=1, rendezvous=RENDEZVOUS)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_has_its_name_in_the_table(name):
    framework = load_framework(name)
    assert framework.name == name
    assert framework is load_framework(name)
    assert framework.gives_list is (framework.cluster is None)


@pytest.mark.parametrize("name", EVERYWHERE)
def test_every_rank_has_the_variables_of_torchrun(name):
    env = make_env(name, Script(path="t.py"))
    expected = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [env[key] for key in expected] == ["3", "1", "4", "1", "10.0.0.1", "29500"]
    assert env["TORCHELASTIC_RESTART_COUNT"] == "1"


@pytest.mark.parametrize("name", EVERYWHERE)
def test_call_variables_have_the_rendezvous_and_no_restart(name):
    assert load_framework(name).make_call_env(RENDEZVOUS) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


@pytest.mark.parametrize("work", [Command(argv=("torchrun", "t.py")), Script(path="t.py")])
def test_only_commands_get_the_variables_of_torchrun_nodes(work):
    env = make_env("command", work)
    assert [env[key] for key in sorted(NODE_VARIABLES)] == ["2", "1", "2", "1"]
    assert env["PET_MASTER_ADDR"] == "10.0.0.1"
    for name in ("pytorch", "spmd"):
        assert not NODE_VARIABLES & make_env(name, work).keys()


def test_ranks_that_wait_for_calls_get_no_node_variables():
    assert not NODE_VARIABLES & make_env("command", Calls()).keys()


@pytest.mark.parametrize(
    ("name", "kind", "procs"),
    [
        ("pytorch", "function", 4),
        ("spmd", "calls", 4),
        ("command", "function", 1),
        ("command", "calls", 1),
        ("command", "command", 4),
        ("ray", "function", 1),
        ("ray", "calls", 1),
        ("monarch", "function", 1),
    ],
)
def test_ranks_per_node(name, kind, procs):
    assert load_framework(name).count_procs(4, kind) == procs


def test_preloads_and_stores_of_frameworks():
    preload = {name: load_framework(name).preload for name in FRAMEWORKS}
    assert preload == {
        "pytorch": ("torch",),
        "spmd": (),
        "command": (),
        "ray": ("ray",),
        "monarch": ("torch",),
    }
    assert [name for name in FRAMEWORKS if load_framework(name).store] == ["pytorch"]
    opening = [name for name in FRAMEWORKS if load_framework(name).opens_store(("torch",), 2)]
    assert opening == ["pytorch", "ray", "monarch"]


def test_ray_gives_its_rank_the_address_and_token_of_the_cluster():
    spec = JobSpec(work=Script(path="t.py"), framework="ray", nodes=3, only_first=True)
    plan = make_plan(spec, job_id="j", now_s=0.0, facts=Facts(environ={}))
    assert [node.num_ranks for node in plan.nodes] == [1, 0, 0]
    ray = load_framework("ray")
    cluster = RankRendezvous(address="10.0.0.1", port=6379, has_store=True, secret="s3cret")
    expected = {
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": "s3cret",
    }
    assert ray.make_call_env(cluster) == expected
    env = ray.make_env(plan, 0, attempt=1, rendezvous=cluster)
    assert (
        env.items() >= {**expected, "RANK": "0", "WORLD_SIZE": "1", "GROUP_WORLD_SIZE": "3"}.items()
    )
    assert not {"MASTER_ADDR", "MASTER_PORT"} & env.keys()
    waiting = ray.make_env(plan, 0, attempt=1, rendezvous=RankRendezvous(address="", port=0))
    assert not expected.keys() & waiting.keys()


def test_monarch_gives_its_rank_the_hosts_of_the_mesh():
    monarch = load_framework("monarch")
    mesh = RankRendezvous(
        address="", port=0, members=("tcp://10.0.0.1:26600", "tcp://10.0.0.2:26600")
    )
    expected = {"WINDLASS_MONARCH_WORKERS": "tcp://10.0.0.1:26600 tcp://10.0.0.2:26600"}
    assert monarch.make_call_env(mesh) == expected
    assert monarch.make_call_env(RankRendezvous(address="", port=0)) == {}


@pytest.mark.parametrize(
    ("preload", "num_ranks", "is_wanted"),
    [(("torch",), 2, True), (("numpy", "torch"), 4, True), (("torch",), 1, False), ((), 8, False)],
)
def test_a_store_is_for_ranks_that_have_torch_and_peers(preload, num_ranks, is_wanted):
    store = load_framework("pytorch").store
    assert store is not None
    assert store.is_wanted(preload, num_ranks) is is_wanted


@pytest.mark.parametrize("name", EVERYWHERE)
@pytest.mark.parametrize(
    ("message", "is_consequence"),
    [
        ("[/pytorch/gloo/transport/tcp/pair.cc] Connection closed by peer [127.0.0.1]:1", True),
        ("recvValue failed on SocketImpl(fd=3)", True),
        ("[Errno 32] Broken pipe", True),
        ("NCCL error: remote process exited or there was a network error", True),
        ("loss is nan", False),
        ("", False),
    ],
)
def test_a_lost_peer_is_a_consequence(name, message, is_consequence):
    error = ErrorInfo(type="RuntimeError", message=message, traceback="")
    assert load_framework(name).is_consequence(error) is is_consequence


@pytest.mark.parametrize(
    "work", [Function(name="f"), Script(path="t.py"), Module(name="m"), Calls()]
)
def test_pytorch_is_the_default_for_python_work(work):
    assert work.framework == choose_framework("", is_command=False).name == "pytorch"
    assert choose_framework("spmd", is_command=False).name == "spmd"


@pytest.mark.parametrize("asked", ["", *FRAMEWORKS])
def test_command_always_runs_as_a_command(asked):
    assert choose_framework(asked, is_command=True).name == "command"


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        ("pytroch", "unknown framework 'pytroch'", "did you mean 'pytorch'?"),
        ("zzz", "unknown framework 'zzz'", "available: pytorch, spmd, command"),
    ],
)
def test_unknown_names(wrong, message, hint):
    for refuse in (check_framework, load_framework):
        with pytest.raises(SpecError, match=message) as caught:
            refuse(wrong)
        assert hint in caught.value.hint


def test_only_the_framework_that_is_used_is_imported():
    code = (
        "import sys; from windlass.frameworks.framework import FRAMEWORKS, load_framework;"
        "load_framework('spmd'); print(*(n for n, m in FRAMEWORKS.items() if m in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == ("spmd\n", "")

"""What each framework says of itself: ranks per node, variables, meeting, blame; and the table of names."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.agent.frameworks.framework_table import (
    FRAMEWORKS,
    check_framework,
    choose_framework,
    load_framework,
)
from windlass.errors import SpecError
from windlass.plan.plan import Facts, make_plan
from windlass.plan.rank_env import Meeting
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Calls, Command, Function, Module, Script
from windlass.wire.results import ErrorInfo

MEETING = Meeting(address="10.0.0.1", port=29500, has_store=True)
NODE_VARIABLES = {"NNODES", "NODE_RANK", "PET_NNODES", "PET_NODE_RANK"}


def make_env(framework, work, rank=3):
    spec = JobSpec(work=work, framework=framework, nodes=2, procs=2)
    plan = make_plan(spec, job_id="j", now_s=0.0, facts=Facts(environ={}))
    assert plan.framework == framework
    return load_framework(framework).make_env(plan, rank, attempt=1, meeting=MEETING)


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_framework_is_what_the_table_calls_it(name):
    framework = load_framework(name)
    assert framework.name == name
    assert framework is load_framework(name)
    assert framework.gives_list


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_every_rank_has_the_variables_of_torchrun(name):
    env = make_env(name, Script(path="t.py"))
    told = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
    assert [env[key] for key in told] == ["3", "1", "4", "1", "10.0.0.1", "29500"]
    assert env["TORCHELASTIC_RESTART_COUNT"] == "1"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_call_tells_where_to_meet_and_is_no_restart(name):
    assert load_framework(name).make_call_env(MEETING) == {
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
    }


@pytest.mark.parametrize("work", [Command(argv=("torchrun", "t.py")), Script(path="t.py")])
def test_only_commands_are_told_how_torchrun_would_spread_them(work):
    env = make_env("command", work)
    assert [env[key] for key in sorted(NODE_VARIABLES)] == ["2", "1", "2", "1"]
    assert env["PET_MASTER_ADDR"] == "10.0.0.1"
    for name in ("pytorch", "spmd"):
        assert not NODE_VARIABLES & make_env(name, work).keys()


def test_ranks_that_wait_for_calls_are_not_told_yet():
    assert not NODE_VARIABLES & make_env("command", Calls()).keys()


@pytest.mark.parametrize(
    ("name", "kind", "procs"),
    [
        ("pytorch", "function", 4),
        ("spmd", "calls", 4),
        ("command", "function", 1),
        ("command", "calls", 1),
        ("command", "command", 4),
    ],
)
def test_ranks_per_node(name, kind, procs):
    assert load_framework(name).count_procs(4, kind) == procs


def test_only_pytorch_imports_ahead_and_opens_a_store():
    preload = {name: load_framework(name).preload for name in FRAMEWORKS}
    assert preload == {"pytorch": ("torch",), "spmd": (), "command": ()}
    assert [name for name in FRAMEWORKS if load_framework(name).store] == ["pytorch"]


@pytest.mark.parametrize(
    ("preload", "num_ranks", "is_wanted"),
    [(("torch",), 2, True), (("numpy", "torch"), 4, True), (("torch",), 1, False), ((), 8, False)],
)
def test_a_store_is_for_ranks_that_have_torch_and_peers(preload, num_ranks, is_wanted):
    store = load_framework("pytorch").store
    assert store is not None
    assert store.is_wanted(preload, num_ranks) is is_wanted


@pytest.mark.parametrize("name", FRAMEWORKS)
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
def test_python_is_pytorchs_unless_another_is_asked_for(work):
    assert work.framework == choose_framework("", is_command=False).name == "pytorch"
    assert choose_framework("spmd", is_command=False).name == "spmd"


@pytest.mark.parametrize("asked", ["", *FRAMEWORKS])
def test_a_command_runs_as_one_whatever_is_asked_for(asked):
    assert choose_framework(asked, is_command=True).name == "command"


@pytest.mark.parametrize(
    ("wrong", "message", "hint"),
    [
        ("pytroch", "there is no framework 'pytroch'", "did you mean 'pytorch'?"),
        ("zzz", "there is no framework 'zzz'", "there are pytorch, spmd, command"),
        ("ray", "the framework 'ray' is not there yet", "pytorch and spmd run any function"),
        ("monarch", "the framework 'monarch' is not there yet", "command runs a program"),
    ],
)
def test_names_that_are_none(wrong, message, hint):
    for refuse in (check_framework, load_framework):
        with pytest.raises(SpecError, match=message) as caught:
            refuse(wrong)
        assert hint in caught.value.hint


def test_only_the_framework_that_is_used_is_imported():
    code = (
        "import sys; from windlass.agent.frameworks.framework_table import FRAMEWORKS, load_framework;"
        "load_framework('spmd'); print(*(n for n, m in FRAMEWORKS.items() if m in sys.modules))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.stdout, answer.stderr) == ("spmd\n", "")

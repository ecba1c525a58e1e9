"""Context in its three environments: no launcher, torchrun, and ranks of a job on this machine."""

from __future__ import annotations

import json
import pickle
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import windlass as wl
from windlass import names
from windlass.errors import ProtocolError, SpecError
from windlass.train.parallel import context as context_module
from windlass.train.parallel.context import count_attempt, decode_plain, encode_plain, get_context

TORCHRUN = {
    names.RANK: "0",
    names.WORLD_SIZE: "1",
    names.LOCAL_RANK: "0",
    names.LOCAL_WORLD_SIZE: "1",
    names.GROUP_RANK: "0",
    names.GROUP_WORLD_SIZE: "1",
    names.TORCHELASTIC_RESTART_COUNT: "2",
    names.TORCHELASTIC_RUN_ID: "none",
    names.MASTER_ADDR: "127.0.0.1",
}


@pytest.fixture(autouse=True)
def bare_process(monkeypatch):
    """Remove what a launcher or an earlier test has left in this process."""
    for name in (*TORCHRUN, names.MASTER_PORT, names.JOB_ID, names.ATTEMPT, names.OUT):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(context_module, "_context", None)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.fixture
def torchrun(monkeypatch):
    """Set the variables that torchrun sets for one worker."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for name, value in {**TORCHRUN, names.MASTER_PORT: str(port)}.items():
        monkeypatch.setenv(name, value)


def test_without_a_launcher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    context = get_context()
    assert (context.rank, context.world_size, context.local_rank, context.attempt) == (0, 1, 0, 0)
    assert (context.node, context.num_nodes) == (0, 1)
    assert context.is_main
    assert context.out == tmp_path / "out"
    assert not dist.is_initialized()


def test_collectives_of_one_process_are_the_identity():
    context = get_context()
    context.barrier()
    assert context.gather({"a": 1}) == [{"a": 1}]
    assert context.broadcast("x") == "x"
    assert context.total(1, 2.5) == (1.0, 2.5)
    context.report(step=1, total=2, loss=0.5)  # no launcher receives this


def test_values_keep_their_types_and_are_never_pickled():
    value = {"a": (1, [2.5, None, True]), 3: b"\x00\xff", (1, "x"): "\u00e4"}
    assert decode_plain(encode_plain(value)) == value
    with pytest.raises(SpecError, match="Path"):
        get_context().gather(Path("x"))
    with pytest.raises(ProtocolError, match="cannot decode a value"):
        decode_plain(pickle.dumps(value))


def test_there_is_one_context():
    assert get_context() is get_context()


def test_under_torchrun_the_group_is_joined(torchrun):
    context = get_context()
    assert dist.is_initialized()
    assert dist.get_backend() == "gloo"
    assert context.attempt == 2
    assert context.total(1, 2) == (1.0, 2.0)
    assert context.gather(3) == [3]
    assert context.broadcast("x") == "x"
    context.barrier()
    assert get_context() is context


def test_existing_group_is_used(torchrun):
    dist.init_process_group("gloo")
    assert get_context().world_size == 1


def test_context_ends_with_its_group(torchrun):
    context = get_context()
    dist.destroy_process_group()
    assert get_context() is not context
    assert dist.is_initialized()


def test_rank_that_cannot_find_the_others_raises(monkeypatch):
    monkeypatch.setenv(names.RANK, "0")
    monkeypatch.setenv(names.WORLD_SIZE, "2")
    with pytest.raises(SpecError, match="MASTER_ADDR and MASTER_PORT"):
        get_context()


def test_rank_that_is_not_a_number_is_named(monkeypatch):
    monkeypatch.setenv(names.LOCAL_RANK, "first")
    with pytest.raises(SpecError, match="LOCAL_RANK must be a number, not 'first'"):
        get_context()


def test_the_device_can_be_chosen():
    assert get_context(device="cpu").device == torch.device("cpu")


def test_one_process_has_no_mesh():
    assert get_context().mesh() is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_missing_gpu_is_reported():
    for device in ("cuda", "cuda:1"):
        with pytest.raises(
            SpecError, match=f"device '{device}' does not exist: this process sees 0 GPUs"
        ):
            get_context(device=device)


def test_sigterm_is_noticed():
    context = get_context()
    signal.raise_signal(signal.SIGTERM)
    assert context.preemption.is_noticed


@pytest.mark.parametrize(
    ("environ", "attempt"),
    [
        ({}, 0),
        ({names.TORCHELASTIC_RESTART_COUNT: "3"}, 3),
        (
            {
                names.JOB_ID: "j",
                names.TORCHELASTIC_RUN_ID: "j",
                names.ATTEMPT: "2",
                names.TORCHELASTIC_RESTART_COUNT: "2",
            },
            2,
        ),
        (
            {
                names.JOB_ID: "j",
                names.TORCHELASTIC_RUN_ID: "none",
                names.ATTEMPT: "1",
                names.TORCHELASTIC_RESTART_COUNT: "2",
            },
            3,
        ),
    ],
    ids=["alone", "torchrun", "windlass", "torchrun in a job"],
)
def test_attempts_are_counted_under_every_launcher(environ, attempt):
    assert count_attempt(environ) == attempt


def _look():
    from windlass.train import get_context

    context = get_context()
    everyone = context.gather((context.rank, context.local_rank, context.node))
    received = context.broadcast(f"from {context.rank}")
    context.barrier()
    return {
        "everyone": everyone,
        "received": received,
        "total": context.total(context.rank, 1),
        "shape": (context.world_size, context.local_world_size, context.num_nodes, context.attempt),
        "grace_s": context.preemption.grace_s,
        "out": str(context.out),
    }


def test_ranks_of_a_job_on_this_machine(home):
    results = wl.run(_look, nodes=2, procs=1, grace_s=7)
    first = results[0]
    assert first["everyone"] == [(0, 0, 0), (1, 0, 1)]
    assert first["received"] == results[1]["received"] == "from 0"
    assert first["total"] == results[1]["total"] == (1.0, 2.0)
    assert first["shape"] == (2, 1, 2, 0)
    assert first["grace_s"] == 7
    assert first["out"] == results[1]["out"]
    assert Path(first["out"]).name == "out"


@pytest.mark.skipif(sys.platform != "linux", reason="threads are put last by Linux's calls")
@pytest.mark.parametrize(
    "how",
    ["context", *(pytest.param(how, marks=pytest.mark.long) for how in ("unnamed", "handler"))],
)
def test_rank_that_ends_right_after_an_exchange_exits_cleanly(how, tmp_path):
    """Communication threads of torch get time to finish. With torch alone, a third of such ranks abort."""
    script = Path(__file__).with_name("late_exchange.py")
    line = [sys.executable, str(script), how, "6"]
    ran = subprocess.run(line, capture_output=True, text=True, timeout=170, cwd=tmp_path)
    assert json.loads(ran.stdout) == {"0": 12}, ran.stderr[-2000:]


@pytest.mark.parametrize(("num_nodes", "is_parted"), [("1", True), ("2", False)])
def test_restart_by_torchrun_ignores_the_dead_attempt(torchrun, monkeypatch, num_nodes, is_parted):
    """The store of torchrun survives restarts, and each of its agents counts restarts separately."""
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    monkeypatch.setenv(names.MASTER_PORT, str(server.port))
    monkeypatch.setenv(names.TORCHELASTIC_USE_AGENT_STORE, "True")
    monkeypatch.setenv(names.GROUP_WORLD_SIZE, num_nodes)
    get_context()
    keys = server.list_keys()
    assert keys
    assert {key.startswith("attempt-2/") for key in keys} == {is_parted}, keys

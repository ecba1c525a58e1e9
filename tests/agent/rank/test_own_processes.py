"""Single ranks whose script starts its own processes: they get no store, and work as under `python`."""

from __future__ import annotations

import pytest

import windlass as wl

pytestmark = pytest.mark.long

SPAWN = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank, address, folder):
    dist.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    open(f"{folder}/{rank}", "w").write(str(int(total)))
    dist.barrier()
    dist.destroy_process_group()

def find_port():
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]

def main(folder):
    mp.spawn(work, args=(f"tcp://127.0.0.1:{find_port()}", folder), nprocs=2)

if __name__ == "__main__":
    main(sys.argv[1])
"""

# like torch's own RPC examples: own variables, then any number of processes
RPC = """
import os, sys, torch, torch.distributed.rpc as rpc, torch.multiprocessing as mp

def work(rank, port, folder):
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "127.0.0.1", str(port)
    options = rpc.TensorPipeRpcBackendOptions(_transports=["uv"], _channels=["basic"])
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        total = rpc.rpc_sync("worker1", torch.add, args=(torch.ones(1), 2))
        open(f"{folder}/rpc", "w").write(str(int(total)))
    rpc.shutdown()

if __name__ == "__main__":
    import socket
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(work, args=(port, sys.argv[1]), nprocs=2)
"""

# like imagenet's --multiprocessing-distributed: the rank of the node times its processes
ENV = """
import os, sys, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(local_rank, folder):
    world_size, rank = int(os.environ["WORLD_SIZE"]) * 2, int(os.environ["RANK"]) * 2 + local_rank
    dist.init_process_group("gloo", init_method="env://", world_size=world_size, rank=rank)
    total = torch.tensor([rank + 1])
    dist.all_reduce(total)
    open(f"{folder}/{rank}", "w").write(str(int(total)))
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""

ALONE = """
import os, sys, torch, torch.distributed as dist
for _ in range(2):
    dist.init_process_group("gloo")
    total = torch.ones(1)
    dist.all_reduce(total)
    dist.destroy_process_group()
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_USE_AGENT_STORE")
open(f"{sys.argv[1]}/alone", "w").write(" ".join(os.environ[name] for name in names))
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, text in {"spawns": SPAWN, "calls": RPC, "counts": ENV, "alone": ALONE}.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    return tmp_path


def read(folder):
    return {path.name: path.read_text() for path in (folder / "out").iterdir()}


@pytest.mark.parametrize("target", ["spawns.py", "-m counts"])
def test_processes_that_meet_on_their_own(folder, target):
    assert wl.run(target, args=["out"], quiet=True, timeout_s=60) == [None]
    assert read(folder) == {"0": "3", "1": "3"}


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_function_that_starts_processes(folder, start):
    wl.run("spawns.py::main", args=["out"], start=start, quiet=True, timeout_s=60)
    assert read(folder) == {"0": "3", "1": "3"}


def test_remote_procedure_calls(folder):
    assert wl.run("calls.py", args=["out"], quiet=True, timeout_s=60) == [None]
    assert read(folder) == {"rpc": "3"}


def test_single_rank_can_initialize_by_its_variables(folder):
    assert wl.run("alone.py", args=["out"], quiet=True, timeout_s=60) == [None]
    assert read(folder) == {"alone": "0 1 0 1 False"}


def test_several_ranks_use_the_store(folder):
    def look():
        import os

        import torch  # noqa: F401 - so that it is imported ahead

        return os.environ["TORCHELASTIC_USE_AGENT_STORE"]

    assert wl.run(look, procs=2, quiet=True) == ["True", "True"]

"""A torchrun command on nodes x procs forms one world, however it is written and started."""

from __future__ import annotations

import sys

import pytest

import windlass as wl

# each test starts torchrun, which imports torch once more
pytestmark = [pytest.mark.long, pytest.mark.timeout(400)]

SCRIPT = """
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
open(f"out/{os.environ['RANK']}", "w").write(f"{int(total)} of {os.environ['WORLD_SIZE']}")
dist.barrier()
dist.destroy_process_group()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    (tmp_path / "main.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(folder, num_ranks):
    found = {path.name: path.read_text() for path in (folder / "out").iterdir()}
    assert found == {str(rank): f"{num_ranks} of {num_ranks}" for rank in range(num_ranks)}


def test_two_nodes_of_two(folder):
    assert (
        wl.run(["torchrun", "main.py"], nodes=2, procs=2, quiet=True, timeout_s=300) == [None] * 2
    )
    check(folder, 4)


def test_module_command_with_another_rendezvous(folder):
    line = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=c10d", "main.py"]
    assert wl.run(line, nodes=2, quiet=True, timeout_s=300) == [None, None]
    check(folder, 2)


def test_standalone_starts_the_requested_ranks(folder):
    assert wl.run(["torchrun", "--standalone", "main.py"], procs=2, quiet=True) == [None]
    check(folder, 2)


def test_app_starts_the_requested_ranks(folder):
    app = wl.app("torchrun main.py", name="two", procs=2, engine="local")
    assert app.deploy().wait(300).phase.value == "succeeded"
    check(folder, 2)

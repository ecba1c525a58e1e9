"""Watchdog over ranks: a fork server kills them when their agent stops renewing their lease.

Agents, fork servers and ranks are real. Each rank has a child process, which must die with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field

import pytest
from waits import wait_for

from windlass import processes
from windlass.engines.archives import local_archive
from windlass.plan.plan import Facts, make_plan, render_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Command

# An agent with one rank. Its event loop renews the lease while the file `renew` exists.
AGENT = """
import asyncio, os, pathlib, sys
from windlass import processes
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.rank_lease import RankLease, read_clock
from windlass.wire.messages.forkserver import ForkRank, GuardRanks
archive, folder = sys.argv[1], pathlib.Path(sys.argv[2])
sys.argv = [archive]
processes.become_subreaper()

async def renew(lease):
    while True:
        if (folder / "renew").exists():
            lease.extend(read_clock() + 2.5)
        await asyncio.sleep(0.1)

async def run():
    lease = RankLease.make()
    renewing = asyncio.ensure_future(renew(lease))
    await asyncio.sleep(0)
    server = ForkServer()
    server.start([], {**os.environ, "PYTHONPATH": str(folder)})
    server.guard(GuardRanks(backstop_s=0.5), lease.fd)
    events = asyncio.Queue()
    server.listen(asyncio.get_running_loop(), events.put_nowait)
    out, err = os.pipe(), os.pipe()
    request = ForkRank(
        framework="command", rank=0, attempt=0, env={}, plan=str(folder / "plan.json")
    )
    server.fork(request, (out[1], err[1]))
    os.close(out[1])
    os.close(err[1])
    child = await asyncio.to_thread(os.read, out[0], 100)
    print(server.pid, child.decode().strip(), flush=True)
    while True:
        if (folder / "import").exists():
            (folder / "import").unlink()
            server.extend(["slow_module"])
        while not events.empty():
            print(events.get_nowait().to_header()["event"], flush=True)
        await asyncio.sleep(0.1)

asyncio.run(run())
"""
# Blocks the fork server until the file is deleted, like an import from a slow disk.
SLOW_MODULE = """
import os
open({0!r} + ".begun", "w").close()
while os.path.exists({0!r}):
    os.system("sleep 0.1")
"""


@dataclass
class Ground:
    folder: object
    agent: subprocess.Popen
    server: int = 0
    rank: list[int] = field(default_factory=list)  # the rank and its child

    def is_rank_alive(self):
        return bool(set(self.rank) & processes.read_parents().keys())

    def wait_for_end(self):
        wait_for(lambda: not self.is_rank_alive(), "the rank and its child have exited", 30)

    def is_alive_after(self, seconds):
        """Return whether the rank is alive after that many seconds of real time."""
        subprocess.run(["sleep", str(seconds)], check=True)
        return self.is_rank_alive()


@pytest.fixture
def ground(tmp_path):
    argv = ("sh", "-c", "sleep 618 & echo $$ $!; wait")
    plan = make_plan(
        JobSpec(work=Command(argv=argv)), job_id="job-1", now_s=0, facts=Facts(environ={})
    )
    (tmp_path / "plan.json").write_text(render_plan(plan))
    (tmp_path / "renew").touch()
    slow = tmp_path / "hold"
    (tmp_path / "slow_module.py").write_text(SLOW_MODULE.format(str(slow)))
    command = [sys.executable, "-c", AGENT, local_archive(), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as agent:
        ground = Ground(tmp_path, agent)
        try:
            ground.server, *ground.rank = map(int, agent.stdout.readline().split())
            yield ground
        finally:
            with contextlib.suppress(FileNotFoundError):
                slow.unlink()
            for pid in (*processes.find_descendants(agent.pid), agent.pid):
                processes.kill(pid, signal.SIGKILL)


def test_ranks_live_while_their_agent_does(ground):
    assert ground.is_alive_after(5)


def test_a_stopped_agent_loses_its_ranks(ground):
    os.kill(ground.agent.pid, signal.SIGSTOP)
    ground.wait_for_end()


def test_ranks_of_a_killed_agent_die(ground):
    ground.agent.kill()
    ground.wait_for_end()


@pytest.mark.long
def test_briefly_stopped_agent_keeps_its_ranks(ground):
    os.kill(ground.agent.pid, signal.SIGSTOP)
    assert ground.is_alive_after(1)
    os.kill(ground.agent.pid, signal.SIGCONT)
    assert ground.is_alive_after(4)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs timers of the kernel")
def test_ranks_of_a_stopped_fork_server_die(ground):
    """All processes are stopped, so no process of Windlass can run, and the rank still dies."""
    pids = [ground.agent.pid, ground.server, *ground.rank]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    rank = ground.rank[0]
    wait_for(lambda: rank not in processes.read_parents(), "the rank has exited", 30)


@pytest.mark.long
def test_long_import_neither_kills_nor_keeps_ranks(ground):
    hold = ground.folder / "hold"
    hold.touch()
    (ground.folder / "import").touch()
    wait_for((ground.folder / "hold.begun").exists, "the import has begun", 60)
    assert ground.is_alive_after(5)  # twice its lease
    (ground.folder / "renew").unlink()
    ground.wait_for_end()
    hold.unlink()
    wait_for(lambda: ground.server in processes.read_parents(), "the fork server is running")

"""Agents that are stopped: at most one attempt has ranks at any time, however long the stop lasts.

Real agents on this machine. A stopped agent cannot kill its ranks, so another process must.
"""

from __future__ import annotations

import os
import signal

import pytest
from severable_agents import open_ground
from waits import wait_for

from windlass import processes
from windlass.wire.status import Phase

pytestmark = pytest.mark.long


def finish(ground, lead, num_worlds=2):
    (ground.notes / "done").touch()
    wait_for(lambda: (s := lead.status()) and s.phase.is_final, "the job has ended", 60)
    assert lead.status().phase is Phase.SUCCEEDED
    assert len(ground.check_one_world()) == num_worlds


def start_again(ground, lead):
    ground.relays.pop(1)
    ground.lead_to(lead, 1)
    ground.start("1-again", 1)


def find_tree(agent):
    return [agent.process.pid, *sorted(processes.find_descendants(agent.process.pid))]


def send(pids, signum):
    for pid in pids:
        processes.kill(pid, signum)


@pytest.mark.parametrize("is_whole", [False, True], ids=["the agent", "all its processes"])
def test_stopped_follower(tmp_path, is_whole):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        follower = ground.agents["1"]
        stopped = find_tree(follower) if is_whole else [follower.process.pid]
        send(stopped, signal.SIGSTOP)
        start_again(ground, lead)
        ground.wait_for_ranks(1, 2, 60)
        send(stopped, signal.SIGCONT)
        finish(ground, lead)


@pytest.mark.parametrize("is_whole", [False, True], ids=["the agent", "all its processes"])
def test_stopped_lead(tmp_path, is_whole):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        stopped = find_tree(lead) if is_whole else [lead.process.pid]
        send(stopped, signal.SIGSTOP)
        other = ground.start("0-again", 0, num_losses=1)
        ground.relays[1].divert(other.port)
        ground.wait_for_ranks(1, 2, 60)
        send(stopped, signal.SIGCONT)
        finish(ground, other)


def test_agent_that_resumes_late_joins_again(tmp_path):
    """It reads messages that its lead sent before giving it up. They must not count as a sign of life."""
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        ground.start_all()
        follower = ground.agents["1"]
        os.kill(follower.process.pid, signal.SIGSTOP)
        gone = "has sent nothing for 2 s"
        wait_for(lambda: gone in ground.log("0"), "the lead has given it up", 30)
        wait_for(lambda: "not renewed the lease" in ground.log("1"), "its ranks are ended", 30)
        os.kill(follower.process.pid, signal.SIGCONT)
        late = "this agent was unresponsive, so its lead may consider it lost"
        wait_for(lambda: late in ground.log("1"), "it logs that it was unresponsive", 30)
        ground.wait_for_ranks(1, 2, 60)
        finish(ground, ground.agents["0"])


def test_briefly_stopped_agents_lose_nothing(tmp_path):
    with open_ground(tmp_path, nodes=2, min_nodes=2) as ground:
        lead = ground.start_all()
        for agent in (ground.agents["1"], lead):
            os.kill(agent.process.pid, signal.SIGSTOP)
            wait_for(lambda a=agent: is_stopped(a.process.pid), "it is stopped", 10)
            os.kill(agent.process.pid, signal.SIGCONT)
        finish(ground, lead, num_worlds=1)


def is_stopped(pid):
    with open(f"/proc/{pid}/stat", "rb") as file:
        return file.read().rpartition(b")")[2].split()[0] == b"T"

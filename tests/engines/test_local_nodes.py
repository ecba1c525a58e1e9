"""Lost nodes of the local engine: the lead replaces their agents, within a budget."""

from __future__ import annotations

import os
import signal

import pytest
from waits import wait_for

import windlass as wl


def train(folder):
    """Record the attempt, and return once a file `done` exists."""
    attempt, rank = os.environ["WINDLASS_ATTEMPT"], os.environ["RANK"]
    with open(f"{folder}/{attempt}-{rank}", "x"):
        pass
    wait_for(lambda: os.path.exists(f"{folder}/done"), "done", 170)
    return attempt, os.environ["WORLD_SIZE"]


def wait_for_attempt(folder, attempt, count):
    def is_there():
        return len(list(folder.glob(f"{attempt}-*"))) == count

    wait_for(is_there, f"{count} ranks of attempt {attempt}", 60)


@pytest.mark.parametrize("nodes", [3, "1:3"])
def test_lost_agent_is_replaced(home, tmp_path, nodes):
    job = wl.submit(train, (str(tmp_path),), nodes=nodes, grace_s=1)
    wait_for_attempt(tmp_path, 0, 3)
    before = {node.index: node.pid for node in job.status().nodes}
    os.kill(before[2], signal.SIGKILL)
    if nodes == 3:
        wait_for_attempt(tmp_path, 1, 3)
    else:  # on a busy machine the attempt starts with fewer nodes
        wait_for(lambda: len(list(tmp_path.glob("1-*"))) >= 2, "attempt 1", 60)
    (tmp_path / "done").touch()
    results = job.results()
    assert len(results) in ((3,) if nodes == 3 else (2, 3))
    assert set(results) == {("1", str(len(results)))}
    after = {node.index: node.pid for node in job.status().nodes}
    if nodes == 3:
        assert [index for index in before if before[index] != after[index]] == [2]
    [verdict] = job.status().history
    assert (verdict.kind.value, verdict.node) == ("lost node", 2)


@pytest.mark.long
def test_replacements_have_a_budget(home, tmp_path):
    job = wl.submit(train, (str(tmp_path),), nodes=2, grace_s=1, node_restarts=1)
    for attempt in range(2):
        wait_for_attempt(tmp_path, attempt, 2)
        os.kill(job.status().nodes[1].pid, signal.SIGKILL)
    verdict = job.wait(60).verdict
    assert (verdict.kind.value, verdict.node, verdict.attempt) == ("lost node", 1, 1)


@pytest.mark.long
def test_stopped_agent_is_killed_and_replaced(home, tmp_path):
    job = wl.submit(train, (str(tmp_path),), nodes=2, grace_s=1)
    wait_for_attempt(tmp_path, 0, 2)
    status = job.status()
    os.kill(status.nodes[1].pid, signal.SIGSTOP)
    wait_for_attempt(tmp_path, 1, 2)
    for pid in (status.nodes[1].pid, status.ranks[1].pid):
        wait_for(lambda p=pid: not os.path.exists(f"/proc/{p}/exe"), f"{pid} is gone", 10)
    (tmp_path / "done").touch()
    assert job.results() == [("1", "2")] * 2

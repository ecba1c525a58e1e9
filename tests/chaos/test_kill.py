"""SIGKILL to random ranks, agents and fork servers: the verdict is right, and no process remains.

The choice is seeded, so a failure can be reproduced with `CHAOS_SEED=7 pytest tests/chaos`. `CHAOS_ROUNDS`
sets the number of rounds.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path

import pytest
import rank_work as work
from waits import find_leftovers, wait_for

import windlass as wl

pytestmark = pytest.mark.long

SEED = int(os.environ.get("CHAOS_SEED", "20"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "12"))
NODES, PROCS = 2, 2


def _fork_server(agent_pid: int) -> int:
    children = Path(f"/proc/{agent_pid}/task/{agent_pid}/children").read_text().split()
    return int(children[0])


def _choose(job: wl.Job, random_: random.Random) -> tuple[str, int, int]:
    """Choose what to kill, and return its kind, its rank or node, and its PID."""
    status = job.status()
    kind = random_.choice(["rank", "agent", "fork server"])
    if kind == "rank":
        rank = random_.choice(status.ranks)
        return kind, rank.rank, rank.pid
    node = random_.choice(status.nodes)
    return kind, node.index, node.pid if kind == "agent" else _fork_server(node.pid)


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_kill(round_, home, tmp_path):
    random_ = random.Random(SEED * 1000 + round_)
    job = wl.submit(
        work.spawn_children_and_hang,
        (str(tmp_path / "flag"),),
        nodes=NODES,
        procs=PROCS,
        grace_s=1,
        node_restarts=0,
    )
    wait_for(lambda: len(list(tmp_path.glob("flag-*"))) == NODES * PROCS, "every rank has children")
    wait_for(lambda: all(rank.pid for rank in job.status().ranks), "every rank's pid is known")
    kind, number, pid = _choose(job, random_)
    os.kill(pid, signal.SIGKILL)
    verdict = job.wait(30).verdict
    summary = f"killed {kind} {number}: {verdict}"
    if kind == "rank":
        assert (verdict.kind.value, verdict.rank, verdict.signal) == (
            "killed by a signal",
            number,
            "SIGKILL",
        ), summary
        assert verdict.others == {"stopped": NODES * PROCS - 1}, summary
    elif kind == "agent":
        assert (verdict.kind.value, verdict.node) == ("lost node", number), summary
    else:
        assert (verdict.node, verdict.signal) == (number, "SIGKILL"), summary
    wait_for(lambda: not find_leftovers(home), f"no process remains: {find_leftovers(home)}", 15)


def test_a_job_with_restarts_survives_a_killed_fork_server(home, tmp_path):
    def train(folder):
        attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
        Path(folder, f"{attempt}-{os.environ['RANK']}").touch()
        if attempt == "0":
            work.hang()
        return attempt

    job = wl.submit(train, (str(tmp_path),), nodes=2, procs=2, restarts=1)
    wait_for(lambda: len(list(tmp_path.glob("0-*"))) == 4, "the first attempt runs")
    os.kill(_fork_server(job.status().nodes[1].pid), signal.SIGKILL)
    assert job.results(timeout_s=30) == ["1"] * 4
    assert job.status().history[0].node == 1


def test_terminated_agent_cancels_its_job(home, tmp_path):
    flag, saved = tmp_path / "flag", tmp_path / "saved"
    job = wl.submit(work.save_on_term, (str(flag), str(saved)))
    wait_for(flag.exists, "the rank is running")
    os.kill(job.status().nodes[0].pid, signal.SIGTERM)
    status = job.wait(20)
    assert status.phase.value == "cancelled"
    assert "SIGTERM" in status.verdict.message
    assert saved.read_text() == "saved"

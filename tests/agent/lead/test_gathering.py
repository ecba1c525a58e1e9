"""Waiting for nodes: attempts that start with fewer nodes than requested, and those that never start."""

from __future__ import annotations

import asyncio
import json

from socketless_lead import lead_through

from windlass import names
from windlass.wire.status import FailureKind, Phase

# -- fewer nodes than requested --------------------------------------------------------------------


def set_grace(monkeypatch, grace_s=0.05):
    monkeypatch.setattr(names, "FEWER_AFTER_S", grace_s)


def succeed(nodes, index, order):
    if order["type"] == "start":
        nodes.succeed(index)


def test_an_attempt_starts_with_fewer_after_the_grace(tmp_path, monkeypatch):
    set_grace(monkeypatch)
    status, nodes = lead_through(tmp_path, succeed, join=[0, 2], nodes=3, min_nodes=2)
    assert (status.phase, status.num_ranks) == (Phase.SUCCEEDED, 4)
    assert [order["nodes"] for order in nodes.starts(2)] == [[0, 2]]
    assert [(rank.rank, rank.node) for rank in status.ranks] == [(0, 0), (1, 0), (2, 2), (3, 2)]
    world = json.loads((tmp_path / "attempt-0" / "world.json").read_text())
    assert [(node["index"], node["first_rank"]) for node in world] == [(0, 0), (2, 2)]


def test_lead_waits_for_all_nodes_during_the_grace(tmp_path, monkeypatch):
    set_grace(monkeypatch, grace_s=60)
    status, nodes = lead_through(
        tmp_path, succeed, join=[0], meanwhile=lambda _, nodes: nodes.join(1), min_nodes=1
    )
    assert [order["nodes"] for order in nodes.starts()] == [[0, 1]]
    assert not (tmp_path / "attempt-0" / "world.json").exists()
    assert status.phase is Phase.SUCCEEDED


def test_after_the_grace_the_next_node_is_enough(tmp_path, monkeypatch):
    set_grace(monkeypatch, grace_s=0.01)

    def meanwhile(_, nodes):
        asyncio.get_running_loop().call_later(0.1, nodes.join, 2)

    _, nodes = lead_through(tmp_path, succeed, join=[0], meanwhile=meanwhile, nodes=4, min_nodes=2)
    assert [order["nodes"] for order in nodes.starts()] == [[0, 2]]


def test_node_that_joins_during_an_attempt_is_in_the_next(tmp_path, monkeypatch):
    set_grace(monkeypatch)

    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0, but={2})
        elif order["attempt"] == 1:
            nodes.succeed(index)
        elif index == 2:
            nodes.join(1)
            nodes.end(2, "exited", exit_code=3)

    status, nodes = lead_through(tmp_path, acts, join=[0, 2], nodes=3, min_nodes=2, restarts=1)
    assert nodes.kinds(1) == ["start"]  # no stop order, because it had not started that attempt
    assert [order["nodes"] for order in nodes.starts()] == [[0, 2], [0, 1, 2]]
    assert (status.phase, status.num_ranks, status.attempt) == (Phase.SUCCEEDED, 6, 1)
    [blamed] = status.history
    assert (blamed.rank, blamed.node, blamed.node_name) == (2, 2, "job-1-node-2")


def test_a_lost_node_need_not_come_back(tmp_path, monkeypatch):
    """The remaining nodes get new rank numbers."""
    set_grace(monkeypatch)

    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0)
        elif order["attempt"] == 1:
            nodes.succeed(index)
        elif index == 1:
            nodes.lead.lose(1, "its link broke")

    status, nodes = lead_through(tmp_path, acts, nodes=3, min_nodes=1, replaces=True)
    assert [order["nodes"] for order in nodes.starts(2)] == [[0, 1, 2], [0, 2]]
    assert (status.phase, status.num_ranks) == (Phase.SUCCEEDED, 4)
    assert [node.state for node in status.nodes] == ["joined", "lost", "joined"]


def test_node_outside_the_attempt_may_leave(tmp_path, monkeypatch):
    set_grace(monkeypatch)

    def acts(nodes, index, order):
        nodes.join(1)
        nodes.lead.lose(1)
        nodes.succeed(index)

    status, nodes = lead_through(tmp_path, acts, join=[0], min_nodes=1, replaces=True)
    assert (status.phase, status.history) == (Phase.SUCCEEDED, ())
    assert nodes.kinds(1) == []


def test_too_few_nodes_never_start(tmp_path, monkeypatch):
    set_grace(monkeypatch)
    status, nodes = lead_through(
        tmp_path, succeed, join=[0], nodes=3, min_nodes=2, join_timeout_s=0.1
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.START_FAILED)
    assert status.verdict.message == "job-1-node-1, job-1-node-2 did not join within 0.1 s"
    assert nodes.orders == []

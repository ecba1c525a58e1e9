"""Reports of nodes to the lead: lost nodes that return, budgets, readiness, and incompatible nodes."""

from __future__ import annotations

import asyncio

import pytest
from socketless_lead import lead_through, reasons

from windlass.agent.lead.jobs import job_lead as leads
from windlass.wire.results import ErrorInfo
from windlass.wire.status import FailureKind, Phase

PEER_GONE = ErrorInfo(type="RuntimeError", message="[gloo] Connection closed by peer [10.0.0.7]")


def lose_once(nodes, index, order, *, back=True):
    """Lose node 1 in the first attempt, and let the second one succeed."""
    if order["type"] == "stop":
        nodes.stopped(index, nodes.attempt)
    elif order["attempt"] == 0 and index == 1:
        nodes.lead.lose(1, "its link broke")
    elif order["attempt"] == 1:
        nodes.succeed(index)
    if back and order["type"] == "stop" and index == 0:
        nodes.join(1, host="rack-8")


def test_next_attempt_starts_when_a_lost_node_returns(tmp_path):
    status, nodes = lead_through(tmp_path, lose_once, replaces=True)
    assert (status.phase, status.attempt, status.verdict) == (Phase.SUCCEEDED, 1, None)
    assert nodes.kinds(0) == ["start", "stop", "start"]
    assert nodes.kinds(1) == ["start", "start"]  # a lost node gets no orders
    [lost] = status.history
    assert (lost.kind, lost.node, lost.rank) == (FailureKind.LOST_NODE, 1, 2)
    assert lost.message == "job-1-node-1 (rank 2) was lost: its link broke"
    assert [(node.state, node.host) for node in status.nodes] == [
        ("joined", ""),
        ("joined", "rack-8"),
    ]
    assert reasons(status) == [
        ("starting", "WaitingForNodes"),
        ("running", "RanksRunning"),
        ("stopping", "NodeLost"),
        ("starting", "WaitingForNodes"),
        ("running", "RanksRunning"),
        ("succeeded", "AllRanksReturned"),
    ]


def test_verdict_names_the_machine_of_a_lost_node(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0)
        elif index == 1:
            nodes.lead.lose(1, "its link broke")

    def meanwhile(_, nodes):
        nodes.join(1, host="rack-7")

    status, _ = lead_through(tmp_path, acts, join=[0], meanwhile=meanwhile)
    assert status.verdict.message.endswith("its link broke; it was on rack-7")


def test_lost_node_that_does_not_return(tmp_path):
    def acts(nodes, index, order):
        lose_once(nodes, index, order, back=False)

    status, nodes = lead_through(tmp_path, acts, replaces=True, join_timeout_s=0.1)
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.LOST_NODE)
    assert status.verdict.message == "job-1-node-1 was lost and did not come back within 0.1 s"
    assert (status.verdict.node, len(nodes.starts())) == (1, 1)


def test_waiting_for_a_lost_node_counts_towards_the_time_limit(tmp_path):
    """The wait may last the whole join timeout, but no longer than the job's time limit."""

    def acts(nodes, index, order):
        lose_once(nodes, index, order, back=False)

    status, nodes = lead_through(tmp_path, acts, replaces=True, join_timeout_s=50, timeout_s=0.5)
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.TIMEOUT)
    assert status.verdict.message == "the job was not done after its time limit of 0.5 s"
    assert len(nodes.starts()) == 1


# -- budgets -------------------------------------------------------------------------------------


def fail_in_turns(*failures):
    """Fail each attempt as listed, and let the one after the last succeed."""

    def acts(nodes, index, order):
        attempt = nodes.attempt
        if order["type"] == "stop":
            nodes.stopped(index, attempt, but={0} if failures[attempt] == "user" else ())
            if index == 0 and failures[attempt] == "lost":
                nodes.join(1)
        elif attempt == len(failures):
            nodes.succeed(index)
        elif index == 1 and failures[attempt] == "lost":
            nodes.lead.lose(1)
        elif index == 0 and failures[attempt] == "user":
            nodes.end(0, "exited", attempt, exit_code=9)

    return acts


def test_lost_nodes_and_user_failures_have_separate_budgets(tmp_path):
    failures = ("lost", "user", "lost", "user")
    status, _ = lead_through(
        tmp_path, fail_in_turns(*failures), restarts=2, node_restarts=2, replaces=True
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 4)
    lost, user = FailureKind.LOST_NODE, FailureKind.USER_ERROR
    assert [verdict.kind for verdict in status.history] == [lost, user, lost, user]


@pytest.mark.parametrize(
    ("failures", "kind", "node"),
    [
        (("lost", "lost", "lost"), FailureKind.LOST_NODE, 1),
        (("user", "user"), FailureKind.USER_ERROR, 0),
        (("user", "lost", "lost", "user"), FailureKind.USER_ERROR, 0),
    ],
)
def test_job_over_its_budget_ends_with_the_verdict(tmp_path, failures, kind, node):
    status, nodes = lead_through(
        tmp_path, fail_in_turns(*failures), restarts=1, node_restarts=2, replaces=True
    )
    assert (status.phase, status.attempt) == (Phase.FAILED, len(failures) - 1)
    assert (status.verdict.kind, status.verdict.node) == (kind, node)
    assert status.verdict.attempt == len(failures) - 1
    assert len(status.history) == len(nodes.starts()) - 1 == len(failures) - 1


def test_without_a_budget_a_lost_node_ends_the_job(tmp_path):
    status, nodes = lead_through(
        tmp_path, fail_in_turns("lost"), restarts=5, node_restarts=0, replaces=True
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.LOST_NODE)
    assert len(nodes.starts()) == 1


# -- blame ---------------------------------------------------------------------------------------


def lose_peer_then(nodes, index, order, *, after):
    """Let ranks of node 0 report a lost peer before node 1 is reported lost."""
    if nodes.attempt == 1 and order["type"] == "start":
        nodes.succeed(index)
    elif order["type"] == "start" and index == 0:
        for rank in (0, 1):
            nodes.end(rank, "raised", error=PEER_GONE)
    elif order["type"] == "stop" and index == 0:
        nodes.say(0, "cleared", world=0)
        after(nodes)


def test_verdict_waits_for_the_lost_node_behind_a_consequence(tmp_path, monkeypatch):
    monkeypatch.setattr(leads, "SETTLE_S", 0.01)

    def after(nodes):
        def lose():
            nodes.lead.lose(1, "it has said nothing for 4 s")
            nodes.join(1)

        asyncio.get_running_loop().call_later(0.2, lose)

    status, _ = lead_through(
        tmp_path, lambda *a: lose_peer_then(*a, after=after), restarts=0, replaces=True
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    [blamed] = status.history
    assert (blamed.kind, blamed.node) == (FailureKind.LOST_NODE, 1)
    assert blamed.others == {"raised": 2, "lost": 1}


def test_consequence_is_blamed_if_no_node_is_lost(tmp_path, monkeypatch):
    monkeypatch.setattr(leads, "SETTLE_S", 0.01)
    monkeypatch.setattr(leads, "_SETTLE_LOST_S", 0.05)
    status, _ = lead_through(
        tmp_path,
        lambda *a: lose_peer_then(*a, after=lambda nodes: nodes.stopped(1, 0)),
        replaces=True,
    )
    assert (status.phase, status.verdict.rank) == (Phase.FAILED, 0)
    assert status.verdict.exception == "RuntimeError: [gloo] Connection closed by peer [10.0.0.7]"


# -- before the start ----------------------------------------------------------------------------


def test_lead_waits_for_unprepared_nodes(tmp_path):
    seen = []

    def meanwhile(lead, nodes):
        nodes.join(1, is_prepared=False)
        asyncio.get_running_loop().call_later(0.05, prepare, lead, nodes)

    def prepare(lead, nodes):
        seen.append(list(nodes.orders))
        lead.nodes.prepare(1)

    def acts(nodes, index, order):
        nodes.succeed(index)

    status, nodes = lead_through(tmp_path, acts, join=[0], meanwhile=meanwhile)
    assert seen == [[]]
    assert (status.phase, nodes.kinds(1)) == (Phase.SUCCEEDED, ["start"])


def test_a_node_that_never_gets_the_code(tmp_path):
    status, nodes = lead_through(
        tmp_path,
        lambda *_: None,
        join=[0],
        meanwhile=lambda _, nodes: nodes.join(1, is_prepared=False),
        join_timeout_s=0.1,
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.START_FAILED)
    assert status.verdict.message == "job-1-node-1 did not get the code within 0.1 s"
    assert nodes.orders == []


@pytest.mark.parametrize("python", ["3.1.0", "3.12.4", "4.11.0"])
def test_a_node_with_another_python_is_refused_before_any_rank_starts(tmp_path, python):
    status, nodes = lead_through(
        tmp_path,
        lambda *_: None,
        join=[0],
        meanwhile=lambda _, nodes: nodes.join(1, python=python, host="rack-7"),
        minor="3.11",
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.START_FAILED)
    found = ".".join(python.split(".")[:2])
    text = f"from Python 3.11, but job-1-node-1 (on rack-7) runs Python {found}, which cannot run its code"
    assert text in status.verdict.message
    assert "an image with Python 3.11" in status.verdict.message
    assert nodes.orders == []


@pytest.mark.parametrize(("minor", "python"), [("3.11", "3.11.99"), ("", "3.1.0")])
def test_patch_versions_may_differ_and_any_python_runs_code_by_reference(tmp_path, minor, python):
    status, _ = lead_through(
        tmp_path,
        lambda nodes, index, _: nodes.succeed(index),
        join=[0],
        meanwhile=lambda _, nodes: nodes.join(1, python=python),
        minor=minor,
    )
    assert status.phase is Phase.SUCCEEDED

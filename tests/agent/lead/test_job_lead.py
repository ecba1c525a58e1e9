"""Lead of a job, tested by the messages it exchanges with nodes: when attempts start, end and restart."""

from __future__ import annotations

import asyncio
import time

import pytest
from socketless_lead import lead_through, reasons

from windlass.wire.results import ErrorInfo
from windlass.wire.status import FailureKind, Phase


def test_all_ranks_return(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start":
            for rank in nodes.plan.nodes[index].ranks:
                nodes.say(index, "started", rank=rank, pid=100 + rank)
                nodes.end(rank, "returned", exit_code=0)

    status, nodes = lead_through(tmp_path, acts)
    assert (status.phase, status.verdict, status.attempt) == (Phase.SUCCEEDED, None, 0)
    assert [rank.state for rank in status.ranks] == ["returned"] * 4
    assert [rank.pid for rank in status.ranks] == [100, 101, 102, 103]
    assert nodes.kinds(0) == nodes.kinds(1) == ["start"]
    assert nodes.orders[0][1] == nodes.orders[1][1]
    assert reasons(status) == [
        ("starting", "WaitingForNodes"),
        ("running", "RanksRunning"),
        ("succeeded", "AllRanksReturned"),
    ]
    assert "nodes joined" in [moment.name for moment in status.timeline]


def test_one_failure_stops_all_ranks(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 1:
            nodes.end(3, "killed", signal=9)
        elif order["type"] == "stop":
            assert order["now"] is False
            nodes.stopped(index, 0, but={3})

    status, nodes = lead_through(tmp_path, acts)
    assert status.phase is Phase.FAILED
    assert (status.verdict.rank, status.verdict.signal) == (3, "SIGKILL")
    assert status.verdict.others == {"stopped": 3}
    assert nodes.kinds(0) == nodes.kinds(1) == ["start", "stop"]
    assert reasons(status)[-2:] == [("stopping", "RankFailed"), ("failed", "RankFailed")]


def test_earlier_failure_that_is_reported_later_is_blamed(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.end(0, "raised", at_s=200.0, error=ErrorInfo(type="E", message="late"))
        elif order["type"] == "stop" and index == 1:
            nodes.end(2, "raised", at_s=100.0, error=ErrorInfo(type="E", message="early"))
            nodes.stopped(1, 0, but={2})
        elif order["type"] == "stop":
            nodes.stopped(0, 0, but={0})

    status, _ = lead_through(tmp_path, acts)
    assert status.verdict.rank == 2
    assert status.verdict.others == {"raised": 1, "stopped": 2}


def test_done_ranks_are_released_when_all_are_done(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start":
            for rank in nodes.plan.nodes[index].ranks:
                nodes.say(index, "done", rank=rank, attempt=0, at_s=1.0)
        elif order["type"] == "release":
            for rank in nodes.plan.nodes[index].ranks:
                nodes.end(rank, "returned", exit_code=0)

    status, nodes = lead_through(tmp_path, acts)
    assert status.phase is Phase.SUCCEEDED
    assert nodes.kinds(0) == nodes.kinds(1) == ["start", "release"]


def test_done_ranks_are_not_released_while_one_works(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.say(0, "done", rank=0, attempt=0, at_s=1.0)
            nodes.end(1, "returned", exit_code=0)  # a command exits by itself
        elif order["type"] == "start":
            nodes.say(1, "done", rank=2, attempt=0, at_s=1.0)
            nodes.end(3, "raised", error=ErrorInfo(type="E", message="the cause"))
        elif order["type"] == "stop":
            nodes.stopped(index, 0, but={1, 3})

    status, nodes = lead_through(tmp_path, acts)
    assert status.verdict.rank == 3
    assert nodes.kinds(0) == nodes.kinds(1) == ["start", "stop"]


LOST_PEER = ErrorInfo(type="RuntimeError", message="Connection reset by peer")


def test_no_rank_is_stopped_before_the_cause_is_reported(tmp_path):
    """A stopped rank can no longer report its exception."""
    delay_s = 1.0  # longer than a verdict waits for late reports

    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            for rank in (0, 1):
                nodes.end(rank, "raised", at_s=100.0, error=LOST_PEER)
            cause = ErrorInfo(type="ValueError", message="the cause")
            say = lambda: nodes.end(3, "raised", at_s=200.0, error=cause)  # noqa: E731
            asyncio.get_running_loop().call_later(delay_s, say)
        elif order["type"] == "stop":
            assert "the cause" in str(nodes.lead.attempt.outcomes[3].error)
            nodes.stopped(index, 0, but={0, 1, 3})

    status, _ = lead_through(tmp_path, acts, grace_s=600)
    assert (status.verdict.rank, status.verdict.exception) == (3, "ValueError: the cause")


def test_lead_waits_for_the_cause_no_longer_than_the_grace(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.end(0, "raised", error=LOST_PEER)
        elif order["type"] == "stop":
            nodes.stopped(index, 0, but={0})

    status, nodes = lead_through(tmp_path, acts, grace_s=0.05)
    assert status.verdict.rank == 0
    assert nodes.kinds(1) == ["start", "stop"]


def test_lead_does_not_wait_for_the_cause_if_every_rank_failed(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start":
            for rank in nodes.plan.nodes[index].ranks:
                nodes.end(rank, "raised", at_s=100.0 + rank, error=LOST_PEER)
        elif order["type"] == "stop":
            nodes.say(index, "cleared", world=0)

    status, _ = lead_through(tmp_path, acts, grace_s=600)
    assert status.verdict.rank == 0


def test_a_verdict_comes_early_and_counts_the_others_in_the_end(tmp_path, monkeypatch):
    from windlass.agent.lead.jobs import job_lead

    monkeypatch.setattr(job_lead, "SETTLE_S", 0.01)
    early = []

    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.end(0, "exited", exit_code=9)
        elif order["type"] == "stop":
            stop_once_there_is_a_verdict(nodes, index)

    def stop_once_there_is_a_verdict(nodes, index):
        verdict = nodes.lead._status_writer.status.verdict
        if verdict is None:
            asyncio.get_running_loop().call_later(0.01, stop_once_there_is_a_verdict, nodes, index)
            return
        early.append(verdict)
        nodes.stopped(index, 0, but={0})

    status, _ = lead_through(tmp_path, acts, grace_s=30)
    assert (early[0].rank, early[0].others) == (0, {"running": 3})
    assert (status.verdict.rank, status.verdict.others) == (0, {"stopped": 3})


def test_exception_of_a_rank_is_not_overwritten_by_its_exit(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.end(1, "raised", exited=False, error=ErrorInfo(type="E", message="own words"))
            nodes.end(1, "exited", exit_code=1)
        elif order["type"] == "stop":
            nodes.stopped(index, 0, but={1})

    status, _ = lead_through(tmp_path, acts)
    assert status.verdict.exception == "E: own words"
    assert status.ranks[1].state == "raised"


def test_restarts_continue_until_they_are_used_up(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            attempt = order["attempt"]
            nodes.end(0, "exited", attempt, exit_code=9)
            nodes.end(1, "killed", attempt - 1, signal=9)  # a late report of the previous attempt
        elif order["type"] == "stop":
            nodes.stopped(index, nodes.lead.attempt.number, but={0})

    status, nodes = lead_through(tmp_path, acts, restarts=2)
    assert [
        order["attempt"] for i, order in nodes.orders if i == 0 and order["type"] == "start"
    ] == [0, 1, 2]
    assert (status.phase, status.attempt, status.verdict.attempt) == (Phase.FAILED, 2, 2)
    assert [verdict.attempt for verdict in status.history] == [0, 1]
    assert {verdict.rank for verdict in (*status.history, status.verdict)} == {0}


def test_a_restart_may_succeed(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0, but={0})
        elif order["attempt"] == 0:
            if index == 0:
                nodes.end(0, "exited", exit_code=9)
        else:
            for rank in nodes.plan.nodes[index].ranks:
                nodes.end(rank, "returned", 1, exit_code=0)

    status, _ = lead_through(tmp_path, acts, restarts=1)
    assert (status.phase, status.verdict, status.attempt) == (Phase.SUCCEEDED, None, 1)
    assert [verdict.exit_code for verdict in status.history] == [9]


def test_lost_node_ends_the_job_despite_remaining_restarts(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 1:
            nodes.lead.lose(1)
        elif order["type"] == "stop":
            nodes.stopped(index, 0)

    status, nodes = lead_through(tmp_path, acts, restarts=5)
    assert status.phase is Phase.FAILED
    assert (status.verdict.kind, status.verdict.node) == (FailureKind.LOST_NODE, 1)
    assert [node.state for node in status.nodes] == ["joined", "lost"]
    assert nodes.kinds(1) == ["start"]
    assert reasons(status)[-2:] == [("stopping", "NodeLost"), ("failed", "NodeLost")]


def test_node_that_does_not_stop_is_lost(tmp_path, monkeypatch):
    from windlass.agent.lead.jobs import job_lead

    monkeypatch.setattr(job_lead, "_STOP_MARGIN_S", 0.05)

    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.end(0, "exited", exit_code=1)
        elif order["type"] == "stop" and index == 0:
            nodes.stopped(0, 0, but={0})

    status, _ = lead_through(tmp_path, acts, restarts=3)
    assert status.phase is Phase.FAILED
    assert status.nodes[1].state == "lost"
    assert status.verdict.rank == 0


def test_the_time_limit(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0)

    status, _ = lead_through(tmp_path, acts, timeout_s=0.05, restarts=3)
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.TIMEOUT)
    assert status.verdict.message == "the job was not done after its time limit of 0.05 s"
    assert reasons(status)[-2:] == [("stopping", "Timeout"), ("failed", "Timeout")]


def test_cancelling(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 1:
            nodes.lead.end(FailureKind.CANCELLED, "enough")
            nodes.lead.end(FailureKind.CANCELLED, "a second time")
        elif order["type"] == "stop":
            nodes.stopped(index, 0)

    status, nodes = lead_through(tmp_path, acts, restarts=3)
    assert (status.phase, status.verdict.message) == (Phase.CANCELLED, "enough")
    assert nodes.kinds() == ["start", "stop"]
    assert reasons(status)[-2:] == [("stopping", "Cancelled"), ("cancelled", "Cancelled")]


def test_cancelling_again_with_now_kills(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 1:
            nodes.lead.end(FailureKind.CANCELLED, "enough")
        elif order["type"] == "stop" and order["now"]:
            nodes.stopped(index, 0)
        elif order["type"] == "stop" and index == 1:
            nodes.lead.end(FailureKind.CANCELLED, "now!", now=True)

    status, nodes = lead_through(tmp_path, acts, grace_s=600)
    assert status.verdict.message == "enough"
    assert [o["now"] for i, o in nodes.orders if i == 0 and o["type"] == "stop"] == [False, True]


def test_cancelling_before_the_nodes_have_joined(tmp_path):
    status, nodes = lead_through(
        tmp_path,
        lambda *_: None,
        join=[0],
        meanwhile=lambda lead, _: lead.end(FailureKind.CANCELLED, "never mind"),
    )
    assert (status.phase, status.verdict.message) == (Phase.CANCELLED, "never mind")
    assert nodes.orders == []


def test_failure_before_cancelling_is_still_the_verdict(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start" and index == 0:
            nodes.end(1, "exited", exit_code=4, at_s=time.time() - 1)
            nodes.lead.end(FailureKind.CANCELLED, "too late")
        elif order["type"] == "stop":
            nodes.stopped(index, 0, but={1})

    status, _ = lead_through(tmp_path, acts)
    assert (status.phase, status.verdict.exit_code) == (Phase.FAILED, 4)


def test_a_node_that_never_joins(tmp_path):
    status, nodes = lead_through(tmp_path, lambda *_: None, join=[0], join_timeout_s=0.05)
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.START_FAILED)
    assert status.verdict.message == "job-1-node-1 did not join within 0.05 s"
    assert (status.verdict.node, nodes.orders) == (1, [])


def test_a_node_that_is_lost_before_the_start(tmp_path):
    def meanwhile(lead, nodes):
        nodes.join(1)
        lead.lose(1)

    status, _ = lead_through(tmp_path, lambda *_: None, join=[0], meanwhile=meanwhile, nodes=3)
    assert (status.verdict.kind, status.verdict.node) == (FailureKind.LOST_NODE, 1)
    assert status.verdict.message == "job-1-node-1 was lost before the job could start"


@pytest.mark.parametrize("num_nodes", [1, 2])
def test_warnings_of_nodes_are_in_the_status(tmp_path, num_nodes):
    def acts(nodes, index, order):
        about = {
            "is_complete": True,
            "culprit": "threader",
            "num_threads": 3,
            "missing": {"x": "ImportError: no"},
        }
        nodes.say(index, "ready", **about)
        nodes.say(index, "trouble", reason="LogTruncated", message="rank-0.log is incomplete")
        for rank in nodes.plan.nodes[index].ranks:
            nodes.end(rank, "returned", exit_code=0)

    status, _ = lead_through(tmp_path, acts, nodes=num_nodes)
    warnings = {c.reason: c.message for c in status.conditions if c.type == "warning"}
    assert warnings["LogTruncated"] == "rank-0.log is incomplete"
    assert warnings["Importing"] == "x could not be preloaded: ImportError: no"
    assert "importing threader started 2 threads" in warnings["ForkUnsafe"]
    assert len([c for c in status.conditions if c.type == "warning"]) == 3  # each is reported once
    assert "imports done" in [moment.name for moment in status.timeline]

"""State of one attempt: the outcomes of its ranks and the resulting verdict."""

from __future__ import annotations

import pytest
from kube.plans import make_pod_plan

from windlass.agent.lead.attempt import Attempt
from windlass.wire.results import ErrorInfo, Outcome
from windlass.wire.status import FailureKind

PLAN = make_pod_plan("job-1", nodes=3, procs=2)
PEER_GONE = ErrorInfo(type="RuntimeError", message="[gloo] Connection closed by peer [10.0.0.7]")


def outcome(rank, state, *, attempt=4, at_s=100.0, **fields):
    return Outcome(rank=rank, attempt=attempt, state=state, at_s=at_s, **fields)


def make_attempt(*nodes):
    return Attempt(4, PLAN.on_nodes(nodes or (0, 1, 2)))


def test_it_is_done_when_all_ranks_have_exited():
    attempt = make_attempt()
    for rank in range(6):
        assert not attempt.is_done
        assert attempt.add(outcome(rank, "returned"), exited=False)
        assert attempt.add(outcome(rank, "returned", exit_code=0), exited=True)
    assert (attempt.is_done, attempt.has_failure, attempt.make_verdict()) == (True, False, None)


@pytest.mark.parametrize("report", [outcome(0, "killed", attempt=3), outcome(6, "killed")])
def test_outcomes_of_other_attempts_are_ignored(report):
    attempt = make_attempt()
    assert not attempt.add(report, exited=True)
    assert (attempt.has_failure, attempt.exited) == (False, set())


def test_a_failure_is_not_overwritten():
    attempt = make_attempt()
    attempt.add(outcome(1, "raised", error=ErrorInfo(type="E", message="why")), exited=False)
    attempt.add(outcome(1, "exited", exit_code=1), exited=True)
    assert attempt.outcomes[1].state == "raised"
    attempt.add(outcome(2, "returned"), exited=False)
    attempt.add(outcome(2, "killed", signal=11), exited=True)
    assert attempt.outcomes[2].state == "killed"


def test_a_lost_node_takes_its_ranks_with_it():
    attempt = make_attempt()
    attempt.add(outcome(2, "returned"), exited=True)
    lost = list(attempt.lose_node(1, "it was on rack-7"))
    assert [(o.rank, o.state, o.attempt, o.note) for o in lost] == [
        (3, "lost", 4, "it was on rack-7")
    ]
    attempt.add(lost[0], exited=True)
    verdict = attempt.make_verdict()
    assert (verdict.kind, verdict.node, verdict.attempt) == (FailureKind.LOST_NODE, 1, 4)
    assert verdict.others == {"returned": 1, "running": 4}


def test_lost_node_without_ranks_is_ignored():
    attempt = make_attempt(0, 2)
    assert list(attempt.lose_node(1, "")) == []
    assert [o.rank for o in attempt.lose_node(2, "")] == [2, 3]  # numbered within this attempt


def test_rank_that_lost_its_peer_is_not_blamed():
    attempt = make_attempt()
    assert not attempt.has_only_consequences
    attempt.add(outcome(0, "raised", at_s=1.0, error=PEER_GONE), exited=True)
    assert attempt.has_only_consequences
    attempt.add(outcome(4, "lost", at_s=9.0), exited=True)
    assert not attempt.has_only_consequences
    assert attempt.make_verdict().rank == 4

"""Status: phases, reasons and counts for programs."""

from __future__ import annotations

import json

import pytest

from windlass import names, records
from windlass.wire.states import MomentName, NodeState, RankState
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Moment,
    NodeStatus,
    Phase,
    RankStatus,
    Verdict,
)


def test_values_are_frozen():
    """Scripts match on these values."""
    assert [phase.value for phase in Phase] == [
        "pending", "starting", "running", "stopping", "succeeded", "failed", "cancelled", "ended",
    ]  # fmt: skip
    assert [kind.value for kind in FailureKind] == [
        "user error", "killed by a signal", "out of memory", "lost node", "timeout",
        "cancelled", "start failed", "step failed", "outcome not known",
    ]  # fmt: skip


def test_final_phases():
    assert [phase.value for phase in Phase if phase.is_final] == [
        "succeeded",
        "failed",
        "cancelled",
        "ended",
    ]


def test_counting_ranks():
    states = ["running", "returned", "running", "pending"]
    ranks = tuple(RankStatus(rank=i, node=0, state=state) for i, state in enumerate(states))
    status = JobStatus(job_id="j", name="n", engine="local", work="w", ranks=ranks)
    assert [status.count(s) for s in ("running", "returned", "lost")] == [2, 1, 0]


def test_a_status_of_a_newer_writer_is_read():
    status = JobStatus(job_id="j", name="n", engine="local", work="w")
    data = json.loads(json.dumps(records.to_json(status)))
    data["mood"] = "fine"
    data["progress"]["speed"] = 3
    assert records.read(JobStatus, data) == status


def test_location():
    verdict = Verdict(kind=FailureKind.USER_ERROR, message="m", file="/a.py", line=3)
    assert verdict.where == "/a.py:3"
    assert Verdict(kind=FailureKind.TIMEOUT, message="m").where == ""


@pytest.mark.parametrize(
    ("kind", "rank", "reason"),
    [
        (FailureKind.USER_ERROR, 3, names.REASON_RANK_FAILED),
        (FailureKind.OUT_OF_MEMORY, 3, names.REASON_RANK_FAILED),
        (FailureKind.OUT_OF_MEMORY, None, names.REASON_NODE_LOST),
        (FailureKind.LOST_NODE, 3, names.REASON_NODE_LOST),
        (FailureKind.LOST_NODE, None, names.REASON_NODE_LOST),
        (FailureKind.CANCELLED, None, names.REASON_CANCELLED),
        (FailureKind.TIMEOUT, None, names.REASON_TIMEOUT),
        (FailureKind.START_FAILED, None, names.REASON_START_FAILED),
        (FailureKind.UNKNOWN, None, names.REASON_OUTCOME_UNKNOWN),
    ],
)
def test_the_reason_of_a_verdict_follows_from_it(kind, rank, reason):
    assert Verdict(kind=kind, message="m", rank=rank).reason == reason


def test_condition_keeps_its_hint():
    condition = Condition(type="blocker", reason="R", message="a -> b", hint="do", since_s=1.0)
    again = records.read(Condition, json.loads(json.dumps(records.to_json(condition))))
    assert (again.message, again.hint, again.text) == ("a -> b", "do", "a -> b -> do")


def test_a_condition_of_an_older_writer_has_no_hint():
    old = {"type": "blocker", "reason": "R", "message": "it is -> do this", "since_s": 1.0}
    assert records.read(Condition, old).text == "it is -> do this"


def test_states_and_moments_are_plain_text_in_json():
    status = JobStatus(
        job_id="j",
        name="n",
        engine="local",
        work="w",
        nodes=(NodeStatus(index=0, name="a", state=NodeState.READY),),
        ranks=(RankStatus(rank=0, node=0, state=RankState.RETURNED),),
        timeline=(Moment(name=MomentName.SUBMITTED, at_s=1.0),),
    )
    data = json.loads(json.dumps(records.to_json(status)))
    assert data["nodes"][0]["state"] == "ready"
    assert data["ranks"][0]["state"] == "returned"
    assert data["timeline"][0]["name"] == "submitted"
    assert records.read(JobStatus, data) == status

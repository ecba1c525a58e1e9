"""Reason for a job's current state, in one sentence."""

from __future__ import annotations

from dataclasses import replace

from windlass.kube.diagnosis.blocker import Blocker, make_condition
from windlass.observe.explain import explain
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Moment,
    NodeStatus,
    Phase,
    Progress,
    RankStatus,
    Verdict,
)

NOW_S = 1000.0
PENDING = JobStatus(
    job_id="ddp-ab2cd",
    name="ddp-ab2cd",
    engine="kubernetes",
    work="train.py",
    phase=Phase.PENDING,
    num_nodes=2,
    num_ranks=4,
    created_at_s=880.0,
    nodes=(
        NodeStatus(index=0, name="node-0", state="joined"),
        NodeStatus(index=1, name="node-1"),
    ),
    timeline=(Moment(name="submitted", at_s=880.0), Moment(name="queued", at_s=882.0)),
)
GPU = Blocker(
    reason="Unschedulable",
    message="each pod requests 16 nvidia.com/gpu, but 2 of 2 nodes do not have enough",
    hint="ask for less with --gpus",
    pod="ddp-ab2cd-1-xxxxx",
    since_s=895.0,
)
RUNNING = replace(
    PENDING,
    phase=Phase.RUNNING,
    nodes=(),
    conditions=(
        Condition(type="running", reason="RanksRunning", message="4 ranks run", since_s=990.0),
    ),
    ranks=tuple(RankStatus(rank=rank, node=0, state="running", step=30) for rank in range(4)),
    progress=Progress(step=30, total=100, at_s=999.0),
    timeline=(Moment(name="imports done", at_s=990.0),),
)


def test_pending_names_the_first_blocker_and_what_to_do() -> None:
    other = Blocker(reason="PullingImage", message="the node is pulling", since_s=900.0)
    status = replace(PENDING, conditions=(make_condition(GPU), make_condition(other)))
    why = explain(status, now_s=NOW_S)
    assert why.sentence == (
        "ddp-ab2cd has been pending for 1m45s: each pod requests 16 nvidia.com/gpu, "
        "but 2 of 2 nodes do not have enough"
    )
    assert (why.reason, why.next) == ("Unschedulable", "ask for less with --gpus")
    assert why.details == (
        "also: the node is pulling",
        "1 of 2 nodes are missing: node-1 pending",
        "submitted 2m00s ago; since submit: queued 2.0 s",
    )


def test_pending_without_blockers() -> None:
    why = explain(PENDING, now_s=NOW_S)
    assert why.sentence == (
        "ddp-ab2cd has been pending for 2m00s: 1 of 2 nodes are missing: node-1 pending"
    )
    waiting = Condition(type="pending", reason="WaitingForNodes", message="1 of 2", since_s=990.0)
    why = explain(replace(PENDING, conditions=(waiting,)), now_s=NOW_S)
    assert why.sentence == "ddp-ab2cd has been pending for 10s: 1 of 2"
    assert why.reason == "WaitingForNodes"


def test_running_reports_the_step() -> None:
    why = explain(RUNNING, now_s=NOW_S)
    assert why.sentence.startswith("ddp-ab2cd has been running for 10s: step 30/100")
    assert "ranks: 4 running" in why.details
    assert why.next == "windlass logs ddp-ab2cd -f"


def test_running_reports_what_it_waits_for() -> None:
    importing = replace(RUNNING, timeline=())
    assert ": importing (4 ranks run)" in explain(importing, now_s=NOW_S).sentence
    last = replace(RUNNING.ranks[3], state="running")
    done = tuple(replace(rank, state="returned") for rank in RUNNING.ranks[:3])
    why = explain(replace(RUNNING, ranks=(*done, last)), now_s=NOW_S)
    assert why.sentence.endswith(
        "ranks 0, 1, 2 have returned, and rank 3 still runs, "
        "perhaps in a collective without ranks 0, 1, 2"
    )
    slow = replace(RUNNING.ranks[3], step=12)
    why = explain(replace(RUNNING, ranks=(*RUNNING.ranks[:3], slow)), now_s=NOW_S)
    assert why.sentence.endswith("rank 3 is behind, at step 12; the furthest is at 30")
    why = explain(RUNNING, now_s=NOW_S + 120)
    assert why.sentence.endswith("no report for 2m01s, the last at step 30")


def test_a_lost_node_blocks_a_running_job() -> None:
    lost = make_condition(replace(GPU, reason="NodeLost", message="node n2 does not answer"))
    why = explain(replace(RUNNING, conditions=(*RUNNING.conditions, lost)), now_s=NOW_S)
    assert why.sentence == "ddp-ab2cd has been running for 1m45s: node n2 does not answer"


VERDICT = Verdict(
    kind=FailureKind.USER_ERROR,
    message="rank 3 on node-1 raised ValueError: boom at /src/train.py:17",
    rank=3,
    node=1,
    node_name="node-1",
    exception="ValueError: boom",
    file="/src/train.py",
    line=17,
    source="raise ValueError",
    others={"stopped": 3},
    next="windlass logs ddp-ab2cd --rank 3",
)


def test_failed_reports_the_verdict() -> None:
    status = replace(PENDING, phase=Phase.FAILED, ended_at_s=892.0, verdict=VERDICT)
    why = explain(status, now_s=NOW_S, folder="/src")
    assert why.sentence == (
        "ddp-ab2cd failed after 12s (user error): "
        "rank 3 on node-1 raised ValueError: boom at /src/train.py:17"
    )
    assert why.details == ("  train.py:17    raise ValueError", "  the other 3 ranks: 3 stopped")
    assert why.next == "windlass logs ddp-ab2cd --rank 3"


def test_cancelled_and_succeeded() -> None:
    verdict = Verdict(kind=FailureKind.CANCELLED, message="cancelled by the user")
    status = replace(PENDING, phase=Phase.CANCELLED, ended_at_s=892.0, verdict=verdict)
    assert explain(status, now_s=NOW_S).sentence == (
        "ddp-ab2cd was cancelled after 12s: cancelled by the user"
    )
    ended = Condition(type="succeeded", reason="AllRanksReturned", message="all 4", since_s=892.0)
    status = replace(PENDING, phase=Phase.SUCCEEDED, ended_at_s=892.0, conditions=(ended,))
    why = explain(status, now_s=NOW_S)
    assert why.sentence == "ddp-ab2cd succeeded after 12s: all 4"
    assert why.next == "windlass result ddp-ab2cd"


def test_old_blocker_is_not_the_reason_for_an_end() -> None:
    status = replace(
        PENDING,
        phase=Phase.FAILED,
        ended_at_s=892.0,
        verdict=VERDICT,
        conditions=(make_condition(GPU),),
    )
    assert "ValueError" in explain(status, now_s=NOW_S).sentence


def test_control_characters_are_escaped() -> None:
    nasty = "a\x1b[2J\x1b]0;t\x07\rb\x9bc\nd"
    blocker = Blocker(reason="R", message=nasty, hint=nasty)
    status = replace(PENDING, name=nasty, conditions=(make_condition(blocker),))
    why = explain(status, now_s=NOW_S)
    text = "".join((why.sentence, why.next, *why.details))
    assert not set(text) & {"\x1b", "\x07", "\r", "\x9b", "\n"}

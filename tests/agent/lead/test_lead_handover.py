"""Handover between leads: nodes keep the old lead's state, and a new lead continues from it."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from socketless_lead import lead_through

from windlass import records
from windlass.agent.lead.jobs.next_attempt import Budget
from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Command
from windlass.wire.lead_handover import LeadHandover, choose_memory, make_memory
from windlass.wire.status import FailureKind, Moment, Phase, Verdict

HISTORY = (
    Verdict(kind=FailureKind.USER_ERROR, message="rank 1 raised", rank=1, attempt=0, at_s=1.0),
    Verdict(kind=FailureKind.LOST_NODE, message="node 1 was lost", node=1, attempt=1, at_s=2.0),
)
KNOWN = LeadHandover(
    attempt=2,
    restarts_used=1,
    losses_used=1,
    history=HISTORY,
    timeline=(Moment(name="nodes joined", at_s=1.5),),
)


def succeed(nodes, index, order):
    if order["type"] == "start":
        nodes.succeed(index)


def join_with(memory):
    """Return a function that joins node 1 with a memory."""
    return lambda _, nodes: nodes.join(1, memory=memory)


def test_memory_survives_serialization():
    assert records.read(LeadHandover, records.to_json(KNOWN)) == KNOWN


def test_node_0_without_a_memory_counts_the_earlier_leads():
    assert make_memory(0) == LeadHandover()
    assert make_memory(2) == LeadHandover(attempt=1, losses_used=2)


def test_latest_memory_is_used():
    early = LeadHandover(attempt=1, history=HISTORY)
    assert choose_memory([early, KNOWN, LeadHandover()], own=make_memory(1)) == KNOWN
    memory_of_node = LeadHandover(attempt=0, restarts_used=7)
    assert choose_memory([memory_of_node], own=make_memory(1)) == memory_of_node


def test_loss_of_the_lead_itself_is_not_counted_yet():
    assert choose_memory([], own=make_memory(2)) == LeadHandover(attempt=1, losses_used=1)
    assert choose_memory([], own=make_memory(0)) == LeadHandover()


def test_leads_without_a_memory_are_counted():
    """The history is kept, and only the numbers increase."""
    known = choose_memory([KNOWN], own=make_memory(6))
    assert known == replace(KNOWN, attempt=5, losses_used=5)


def test_all_nodes_get_the_memory_before_each_attempt(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0, but={0})
        elif order["attempt"] == 0 and index == 0:
            nodes.end(0, "exited", exit_code=9)
        elif order["attempt"] == 1:
            nodes.succeed(index)

    began_s = time.time()
    _, nodes = lead_through(tmp_path, acts, restarts=1, timeout_s=60)
    sent = [(index, records.read(LeadHandover, memory)) for index, memory in nodes.remembered]
    assert [(index, memory.attempt) for index, memory in sent] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    first, last = sent[0][1], sent[-1][1]
    assert (first.restarts_used, first.history) == (0, ())
    assert (last.restarts_used, [verdict.exit_code for verdict in last.history]) == (1, [9])
    assert first.deadline_at_s == last.deadline_at_s  # the deadline is the job's, not the attempt's
    assert 59 < first.deadline_at_s - began_s < 120
    assert "nodes joined" in [moment.name for moment in first.timeline]


@pytest.mark.parametrize("own", [make_memory(0), make_memory(1), make_memory(2)])
def test_new_lead_continues_where_the_old_one_stopped(tmp_path, own):
    """The new lead's own count of losses may be smaller than the remembered one, or equal."""
    status, nodes = lead_through(
        tmp_path, succeed, join=[0], meanwhile=join_with(KNOWN), memory=own, replaces=True
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 3)
    assert [order["attempt"] for order in nodes.starts(1)] == [3]
    assert status.history[:2] == HISTORY
    [lost] = status.history[2:]
    assert (lost.kind, lost.node, lost.attempt) == (FailureKind.LOST_NODE, 0, 2)
    assert lost.message == "job-1-node-0 was lost, and with it the lead"
    assert ("nodes joined", 1.5) in [(moment.name, moment.at_s) for moment in status.timeline]
    memory = records.read(LeadHandover, nodes.remembered[-1][1])
    assert (memory.attempt, memory.restarts_used, memory.losses_used) == (3, 1, 2)
    assert memory.history == status.history


def test_lead_lost_before_it_started_does_not_change_the_history(tmp_path):
    status, nodes = lead_through(
        tmp_path,
        succeed,
        join=[0],
        meanwhile=join_with(KNOWN),
        memory=make_memory(5),
        node_restarts=5,
        replaces=True,
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 5)
    assert status.history[:2] == HISTORY
    memory = records.read(LeadHandover, nodes.remembered[-1][1])
    assert (memory.restarts_used, memory.losses_used) == (1, 5)


def test_latest_memory_of_all_nodes_is_used(tmp_path):
    def meanwhile(_, nodes):
        nodes.join(1, memory=LeadHandover(attempt=0))
        nodes.join(2, memory=KNOWN)

    status, nodes = lead_through(
        tmp_path, succeed, join=[0], meanwhile=meanwhile, nodes=3, replaces=True
    )
    assert [order["attempt"] for order in nodes.starts(2)] == [3]
    assert len(status.history) == 3


def test_single_node_counts_its_own_losses(tmp_path):
    status, nodes = lead_through(
        tmp_path, succeed, memory=make_memory(2), nodes=1, node_restarts=2, replaces=True
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 2)
    memory = records.read(LeadHandover, nodes.remembered[-1][1])
    assert memory.losses_used == 2  # only the losses of the two earlier leads


@pytest.mark.parametrize(
    ("memory", "memory_of_node"),
    [(make_memory(3), None), (make_memory(1), LeadHandover(attempt=4, losses_used=2))],
)
def test_one_lead_too_many_ends_the_job(tmp_path, memory, memory_of_node):
    status, nodes = lead_through(
        tmp_path,
        succeed,
        join=[0],
        meanwhile=join_with(memory_of_node),
        memory=memory,
        node_restarts=2,
        replaces=True,
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.LOST_NODE)
    assert status.verdict.message == "job-1-node-0 was lost, and with it the lead"
    assert nodes.orders == []


def test_new_lead_keeps_the_deadline(tmp_path):
    """The time limit counts from the start of the first attempt, under any lead."""

    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 1)

    memory = LeadHandover(attempt=0, deadline_at_s=time.time() - 1)
    status, _ = lead_through(
        tmp_path, acts, join=[0], meanwhile=join_with(memory), timeout_s=600, replaces=True
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.TIMEOUT)


@pytest.mark.parametrize("jump_s", [-86_400.0, 86_400.0])
def test_a_jump_of_the_wall_clock_changes_no_time_limit(monkeypatch, jump_s):
    plan = make_plan(
        JobSpec(work=Command(argv=("true",)), timeout_s=600.0),
        job_id="job-1",
        now_s=0,
        facts=Facts(environ={}),
    )
    budget = Budget(plan, LeadHandover())
    budget.begin((), ())
    jumped_s = time.time() + jump_s
    monkeypatch.setattr(time, "time", lambda: jumped_s)
    assert 0 < budget.left_s() <= 600


def test_memory_from_this_lead_is_ignored(tmp_path):
    """A node that returns reports the memory of its old lead, which is this one."""

    def acts(nodes, index, order):
        if order["type"] == "start" and order["attempt"] == 0 and index == 1:
            nodes.lead.lose(1)
            nodes.join(1, memory=LeadHandover(attempt=0, losses_used=3))
        elif order["type"] == "stop":
            nodes.stopped(index, 0)
        elif order["attempt"] == 1:
            nodes.succeed(index)

    status, nodes = lead_through(tmp_path, acts, replaces=True)
    assert [order["attempt"] for order in nodes.starts(0)] == [0, 1]
    assert (status.phase, len(status.history)) == (Phase.SUCCEEDED, 1)


def test_memory_from_another_lead_is_used(tmp_path):
    """This lead was cut off while another one continued the job, so the other's attempts count."""

    def acts(nodes, index, order):
        if order["type"] == "start" and order["attempt"] == 0 and index == 1:
            nodes.lead.lose(1)
            nodes.join(1, memory=LeadHandover(attempt=7, losses_used=1))
        elif order["type"] == "stop":
            nodes.stopped(index, 0)
        elif order["attempt"] == 8:
            nodes.succeed(index)

    status, nodes = lead_through(tmp_path, acts, replaces=True)
    assert [order["attempt"] for order in nodes.starts(0)] == [0, 8]
    assert status.phase is Phase.SUCCEEDED

"""What nodes remember for their lead, and a new lead that goes on where the old one stopped."""

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


def tell(memory):
    """Node 1 comes a moment later, and remembers something."""
    return lambda _, nodes: nodes.join(1, memory=memory)


def test_a_memory_crosses_the_wire():
    assert records.read(LeadHandover, records.to_json(KNOWN)) == KNOWN


def test_a_node_0_that_nobody_tells_anything_counts_those_before_it():
    assert make_memory(0) == LeadHandover()
    assert make_memory(2) == LeadHandover(attempt=1, losses_used=2)


def test_who_knows_most_is_believed():
    early = LeadHandover(attempt=1, history=HISTORY)
    assert choose_memory([early, KNOWN, LeadHandover()], own=make_memory(1)) == KNOWN
    told = LeadHandover(attempt=0, restarts_used=7)
    assert choose_memory([told], own=make_memory(1)) == told


def test_the_loss_of_the_lead_itself_is_still_to_be_counted():
    assert choose_memory([], own=make_memory(2)) == LeadHandover(attempt=1, losses_used=1)
    assert choose_memory([], own=make_memory(0)) == LeadHandover()


def test_leads_that_told_nobody_anything_are_counted_too():
    """What is remembered stays: only numbers go on."""
    known = choose_memory([KNOWN], own=make_memory(6))
    assert known == replace(KNOWN, attempt=5, losses_used=5)


def test_all_nodes_are_told_before_each_attempt(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 0, but={0})
        elif order["attempt"] == 0 and index == 0:
            nodes.end(0, "exited", exit_code=9)
        elif order["attempt"] == 1:
            nodes.succeed(index)

    began_s = time.time()
    _, nodes = lead_through(tmp_path, acts, restarts=1, timeout_s=60)
    told = [(index, records.read(LeadHandover, memory)) for index, memory in nodes.remembered]
    assert [(index, memory.attempt) for index, memory in told] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    first, last = told[0][1], told[-1][1]
    assert (first.restarts_used, first.history) == (0, ())
    assert (last.restarts_used, [verdict.exit_code for verdict in last.history]) == (1, [9])
    assert first.deadline_at_s == last.deadline_at_s  # of the job, not of an attempt
    assert 59 < first.deadline_at_s - began_s < 120
    assert "nodes joined" in [moment.name for moment in first.timeline]


@pytest.mark.parametrize("own", [make_memory(0), make_memory(1), make_memory(2)])
def test_a_new_lead_goes_on_where_the_old_one_stopped(tmp_path, own):
    """Whether its own count of losses is smaller than what is remembered, or the same."""
    status, nodes = lead_through(
        tmp_path, succeed, join=[0], meanwhile=tell(KNOWN), memory=own, replaces=True
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


def test_a_lead_that_was_lost_before_it_began_leaves_the_history_alone(tmp_path):
    status, nodes = lead_through(
        tmp_path,
        succeed,
        join=[0],
        meanwhile=tell(KNOWN),
        memory=make_memory(5),
        node_restarts=5,
        replaces=True,
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 5)
    assert status.history[:2] == HISTORY
    memory = records.read(LeadHandover, nodes.remembered[-1][1])
    assert (memory.restarts_used, memory.losses_used) == (1, 5)


def test_the_node_that_knows_most_is_believed(tmp_path):
    def meanwhile(_, nodes):
        nodes.join(1, memory=LeadHandover(attempt=0))
        nodes.join(2, memory=KNOWN)

    status, nodes = lead_through(
        tmp_path, succeed, join=[0], meanwhile=meanwhile, nodes=3, replaces=True
    )
    assert [order["attempt"] for order in nodes.starts(2)] == [3]
    assert len(status.history) == 3


def test_a_node_0_that_was_alone_counts_its_own_losses(tmp_path):
    status, nodes = lead_through(
        tmp_path, succeed, memory=make_memory(2), nodes=1, node_restarts=2, replaces=True
    )
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 2)
    memory = records.read(LeadHandover, nodes.remembered[-1][1])
    assert memory.losses_used == 2  # the loss of each of the two before it, and no more


@pytest.mark.parametrize(
    ("memory", "told"),
    [(make_memory(3), None), (make_memory(1), LeadHandover(attempt=4, losses_used=2))],
)
def test_one_lead_too_many_ends_the_job(tmp_path, memory, told):
    status, nodes = lead_through(
        tmp_path,
        succeed,
        join=[0],
        meanwhile=tell(told),
        memory=memory,
        node_restarts=2,
        replaces=True,
    )
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.LOST_NODE)
    assert status.verdict.message == "job-1-node-0 was lost, and with it the lead"
    assert nodes.orders == []


def test_the_deadline_is_the_old_leads(tmp_path):
    """The time limit counts from the first attempt's start, whoever leads now."""

    def acts(nodes, index, order):
        if order["type"] == "stop":
            nodes.stopped(index, 1)

    memory = LeadHandover(attempt=0, deadline_at_s=time.time() - 1)
    status, _ = lead_through(
        tmp_path, acts, join=[0], meanwhile=tell(memory), timeout_s=600, replaces=True
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


def test_what_a_node_remembers_is_no_news_once_the_job_runs(tmp_path):
    """A node that was away tells of its old lead, which is this one."""

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


def test_a_node_that_was_led_by_another_meanwhile_is_believed(tmp_path):
    """This lead was out of sight, and another one went on: what it did counts."""

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

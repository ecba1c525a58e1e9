"""Split brain: however the network of a job is cut, at most one of its attempts ever has ranks.

Real agents on this machine, on lines that are severed and healed. Their ranks are deaf to SIGTERM and have
five minutes of grace, and each notes when it lived. On a cluster the same is tried with pods:
test_split_brain_cluster.py.
"""

from __future__ import annotations

import signal

import pytest
from severable_agents import open_ground
from waits import wait_for

from windlass.wire.status import Phase

pytestmark = pytest.mark.long

NO_MAJORITY = "not more than half"


def replace(ground, *indexes, losses=1):
    """What Kubernetes does for pods it cannot see: others of the same index, and the lead's own first."""
    lead = ground.start("0-again", 0, num_losses=losses)
    for index in indexes:
        ground.lines.pop(index)  # a line of its own: the old one's stays severed
        ground.lead_to(lead, index)
        ground.start(f"{index}-again", index)
    return lead


def is_told(agent, text=NO_MAJORITY):
    return any(text in message for message in agent.messages("OneWorld"))


def finish(ground, lead):
    (ground.notes / "done").touch()
    wait_for(lambda: (s := lead.status()) and s.phase.is_final, "the job has ended", 60)
    return lead.status()


def test_of_two_halves_neither_goes_on_until_the_network_heals(tmp_path):
    with open_ground(tmp_path) as ground:
        lead = ground.start_all()
        ground.sever(2, 3)
        wait_for(lambda: is_told(lead), "it says that it is only half", 60)
        assert "only 2 of the 4 nodes of attempt 0 are here" in lead.messages("OneWorld")[-1]
        assert "node 2, node 3" in lead.messages("OneWorld")[-1]
        assert ground.num_ranks(1) == 0
        ground.heal(2, 3)
        ground.wait_for_ranks(1, 3)  # with the first of them they are more than half
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_of_two_halves_with_a_lead_each_neither_goes_on(tmp_path):
    """The half without the lead gets another one, and all the nodes it lacks; even so it waits."""
    with open_ground(tmp_path, join_timeout_s=25.0) as ground:
        lead = ground.start_all()
        far = [ground.lines[index] for index in (2, 3)]
        ground.sever(2, 3)
        other = replace(ground, 1)
        for line in far:  # beyond the cut they find the new lead
            line.divert(other.port)
        for one in (lead, other):
            wait_for(lambda one=one: is_told(one), f"{one.name} says that it is only half", 60)
        for one in (lead, other):
            wait_for(lambda one=one: one.status().phase.is_final, f"{one.name} gives up", 60)
            assert one.status().phase is Phase.FAILED
            assert NO_MAJORITY in one.status().verdict.message
        assert ground.num_ranks(1) == 0
        ground.check_one_world()


@pytest.mark.parametrize("far", [(3,), (1, 2, 3)], ids=["with the lead", "without the lead"])
def test_of_two_parts_the_larger_one_goes_on_alone(tmp_path, far):
    with open_ground(tmp_path, min_nodes=1) as ground:
        lead = ground.start_all()
        lines = [ground.lines[index] for index in far]
        ground.sever(*far)
        other = replace(ground, *({1, 2, 3} - set(far)))
        for line in lines:
            line.divert(other.port)
        larger, smaller = (other, lead) if len(far) == 3 else (lead, other)
        ground.wait_for_ranks(1, 3)
        wait_for(lambda: is_told(smaller), "the smaller one says what it waits for", 60)
        assert finish(ground, larger).phase is Phase.SUCCEEDED
        assert smaller.status().phase is Phase.STARTING
        assert ground.check_one_world()[0].startswith("0-")
        assert len(ground.spans()) == 2


def test_of_two_nodes_that_replaced_others_neither_counts(tmp_path):
    """Three nodes, of which the lead keeps one: the third gets a new lead and peer, and is still alone."""
    with open_ground(tmp_path, nodes=3) as ground:
        lead = ground.start_all()
        far = ground.lines[2]
        ground.sever(2)
        other = replace(ground, 1)
        far.divert(other.port)
        ground.wait_for_ranks(1, 2)
        wait_for(lambda: is_told(other), "the other lead waits", 60)
        assert "only 1 of the 3 nodes of attempt 0" in other.messages("OneWorld")[-1]
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        ground.check_one_world()
        assert len(ground.spans()) == 2


def test_half_of_the_nodes_are_replaced_and_their_lead_goes_on(tmp_path):
    """All nodes are there again: nobody else can have the half that kept its lead."""
    with open_ground(tmp_path) as ground:
        lead = ground.start_all()
        ground.sever(2, 3)
        wait_for(lambda: is_told(lead), "it says that it is only half", 60)
        for index in (2, 3):
            ground.lines.pop(index)
            ground.lead_to(lead, index)
            ground.start(f"{index}-again", index)
        ground.wait_for_ranks(1, 4)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_nodes_that_leave_do_not_count_any_more(tmp_path):
    """They say that they go, and that their ranks are dead: that is no cut, and half are enough."""
    with open_ground(tmp_path, min_nodes=1, grace_s=0.5) as ground:
        lead = ground.start_all()
        for name in ("2", "3"):
            ground.agents[name].process.send_signal(signal.SIGTERM)
        ground.wait_for_ranks(1, 2, 60)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_a_node_that_is_told_to_stop_after_the_cut_says_farewell_to_whoever_leads(tmp_path):
    """Beyond a healed cut the old half is ended; the new lead hears of it, and goes on."""
    with open_ground(tmp_path, grace_s=0.5) as ground:
        ground.start_all()
        near, far = ground.lines[1], [ground.lines[index] for index in (2, 3)]
        ground.sever(2, 3)
        other = replace(ground, 1)
        for line in far:
            line.divert(other.port)
        wait_for(lambda: is_told(other), "the other lead says that it has only half", 60)
        ground.lines[0].target = near.target = other.port  # the network heals
        near.sever()
        near.divert(other.port)
        for name in ("0", "1"):
            ground.agents[name].process.send_signal(signal.SIGTERM)
        ground.wait_for_ranks(1, 4, 60)
        assert finish(ground, other).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_agents_that_died_hold_nobody_up_for_long(tmp_path):
    """The others go on without them, or with those that come in their place."""
    with open_ground(tmp_path, grace_s=0.5) as ground:
        lead = ground.start_all()
        for index in (2, 3):
            ground.agents[str(index)].kill()
            ground.start(f"{index}-again", index)
        ground.wait_for_ranks(1, 2, 60)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        ground.check_one_world()


def test_a_lead_that_died_is_followed_by_another(tmp_path):
    with open_ground(tmp_path, nodes=3, min_nodes=2) as ground:
        lead = ground.start_all()
        lead.kill()
        other = replace(ground)
        ground.lead_to(other, 1, 2)
        ground.wait_for_ranks(1, 2, 60)
        assert finish(ground, other).phase is Phase.SUCCEEDED
        ground.check_one_world()


def test_a_farewell_tells_of_later_attempts_too(tmp_path):
    """The half that kept its lead went on with others: who leaves it gives the old half no majority."""
    with open_ground(tmp_path, grace_s=0.5) as ground:
        lead = ground.start_all()
        near, far = ground.lines[1], [ground.lines[index] for index in (2, 3)]
        ground.sever(2, 3)
        for index in (2, 3):
            ground.lines.pop(index)
            ground.lead_to(lead, index)
            ground.start(f"{index}-again", index)
        ground.wait_for_ranks(1, 4, 60)
        other = replace(ground, 1)
        for line in far:  # beyond the cut they find the new lead
            line.divert(other.port)
        wait_for(lambda: is_told(other), "the other lead says that it has only half", 60)
        near.sever()
        near.divert(other.port)
        wait_for(lambda: "the lead is gone" in ground.log("1"), "node 1 has lost its lead", 60)
        ground.agents["1"].process.send_signal(signal.SIGTERM)
        wait_for(lambda: "ended for good" in ground.log("0-again"), "its farewell is heard", 60)
        ground.wait_for_ranks(2, 3, 60)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 3
        assert "nodes of attempt 1" in other.messages("OneWorld")[-1]

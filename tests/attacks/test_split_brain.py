"""Split brain: however the network of a job is cut, at most one attempt has ranks at any time.

Real agents on this machine, with connections that are severed and healed. Their ranks ignore SIGTERM, have
five minutes of grace, and record when they were alive. test_split_brain_cluster.py does the same with pods of
a cluster.
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
    """Replace pods as Kubernetes does when it cannot reach them, starting with the lead.

    The new pods have the indexes of the old ones.
    """
    lead = ground.start("0-again", 0, num_losses=losses)
    for index in indexes:
        ground.relays.pop(index)  # its own connection, because the old agent's stays severed
        ground.lead_to(lead, index)
        ground.start(f"{index}-again", index)
    return lead


def has_message(agent, text=NO_MAJORITY):
    return any(text in message for message in agent.messages("OneWorld"))


def finish(ground, lead):
    (ground.notes / "done").touch()
    wait_for(lambda: (s := lead.status()) and s.phase.is_final, "the job has ended", 60)
    return lead.status()


def test_neither_half_continues_until_the_network_heals(tmp_path):
    with open_ground(tmp_path) as ground:
        lead = ground.start_all()
        ground.sever(2, 3)
        wait_for(lambda: has_message(lead), "it reports that it has only half", 60)
        assert "only 2 of the 4 nodes of attempt 0 are connected" in lead.messages("OneWorld")[-1]
        assert "node 2, node 3" in lead.messages("OneWorld")[-1]
        assert ground.num_ranks(1) == 0
        ground.heal(2, 3)
        ground.wait_for_ranks(1, 3)  # one of them is enough for more than half
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_neither_half_with_its_own_lead_continues(tmp_path):
    """The half without the lead gets a new lead and all missing nodes, and must still wait."""
    with open_ground(tmp_path, join_timeout_s=25.0) as ground:
        lead = ground.start_all()
        far = [ground.relays[index] for index in (2, 3)]
        ground.sever(2, 3)
        other = replace(ground, 1)
        for relay in far:  # these agents now reach the new lead
            relay.divert(other.port)
        for one in (lead, other):
            wait_for(
                lambda one=one: has_message(one), f"{one.name} reports that it has only half", 60
            )
        for one in (lead, other):
            wait_for(lambda one=one: one.status().phase.is_final, f"{one.name} gives up", 60)
            assert one.status().phase is Phase.FAILED
            assert NO_MAJORITY in one.status().verdict.message
        assert ground.num_ranks(1) == 0
        ground.check_one_world()


@pytest.mark.parametrize("far", [(3,), (1, 2, 3)], ids=["with the lead", "without the lead"])
def test_only_the_larger_part_continues(tmp_path, far):
    with open_ground(tmp_path, min_nodes=1) as ground:
        lead = ground.start_all()
        relays = [ground.relays[index] for index in far]
        ground.sever(*far)
        other = replace(ground, *({1, 2, 3} - set(far)))
        for relay in relays:
            relay.divert(other.port)
        larger, smaller = (other, lead) if len(far) == 3 else (lead, other)
        ground.wait_for_ranks(1, 3)
        wait_for(lambda: has_message(smaller), "the smaller part reports why it waits", 60)
        assert finish(ground, larger).phase is Phase.SUCCEEDED
        assert smaller.status().phase is Phase.STARTING
        assert ground.check_one_world()[0].startswith("0-")
        assert len(ground.spans()) == 2


def test_replacement_nodes_do_not_count(tmp_path):
    """The lead keeps one other node of three. The third node gets a new lead and peer but no majority."""
    with open_ground(tmp_path, nodes=3) as ground:
        lead = ground.start_all()
        far = ground.relays[2]
        ground.sever(2)
        other = replace(ground, 1)
        far.divert(other.port)
        ground.wait_for_ranks(1, 2)
        wait_for(lambda: has_message(other), "the other lead waits", 60)
        assert "only 1 of the 3 nodes of attempt 0" in other.messages("OneWorld")[-1]
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        ground.check_one_world()
        assert len(ground.spans()) == 2


def test_lead_continues_when_half_of_its_nodes_are_replaced(tmp_path):
    """All nodes are present again, and no other lead can have the half that kept its lead."""
    with open_ground(tmp_path) as ground:
        lead = ground.start_all()
        ground.sever(2, 3)
        wait_for(lambda: has_message(lead), "it reports that it has only half", 60)
        for index in (2, 3):
            ground.relays.pop(index)
            ground.lead_to(lead, index)
            ground.start(f"{index}-again", index)
        ground.wait_for_ranks(1, 4)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_nodes_that_left_are_not_counted(tmp_path):
    """Leaving nodes report that their ranks are dead. This is not a cut, so half of the nodes are enough."""
    with open_ground(tmp_path, min_nodes=1, grace_s=0.5) as ground:
        lead = ground.start_all()
        for name in ("2", "3"):
            ground.agents[name].process.send_signal(signal.SIGTERM)
        ground.wait_for_ranks(1, 2, 60)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_stopped_node_says_farewell_to_the_current_lead(tmp_path):
    """The network has healed when the old half is stopped. The new lead gets the farewells and continues."""
    with open_ground(tmp_path, grace_s=0.5) as ground:
        ground.start_all()
        near, far = ground.relays[1], [ground.relays[index] for index in (2, 3)]
        ground.sever(2, 3)
        other = replace(ground, 1)
        for relay in far:
            relay.divert(other.port)
        wait_for(lambda: has_message(other), "the other lead reports that it has only half", 60)
        ground.relays[0].target = near.target = other.port  # the network heals
        near.sever()
        near.divert(other.port)
        for name in ("0", "1"):
            ground.agents[name].process.send_signal(signal.SIGTERM)
        ground.wait_for_ranks(1, 4, 60)
        assert finish(ground, other).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 2


def test_dead_agents_do_not_block_the_others_for_long(tmp_path):
    """The other agents continue without the dead ones, or with their replacements."""
    with open_ground(tmp_path, grace_s=0.5) as ground:
        lead = ground.start_all()
        for index in (2, 3):
            ground.agents[str(index)].kill()
            ground.start(f"{index}-again", index)
        ground.wait_for_ranks(1, 2, 60)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        ground.check_one_world()


def test_dead_lead_is_replaced(tmp_path):
    with open_ground(tmp_path, nodes=3, min_nodes=2) as ground:
        lead = ground.start_all()
        lead.kill()
        other = replace(ground)
        ground.lead_to(other, 1, 2)
        ground.wait_for_ranks(1, 2, 60)
        assert finish(ground, other).phase is Phase.SUCCEEDED
        ground.check_one_world()


def test_farewell_names_later_attempts(tmp_path):
    """The half that kept its lead has continued with new nodes.

    A node that leaves it must not give the old half a majority.
    """
    with open_ground(tmp_path, grace_s=0.5) as ground:
        lead = ground.start_all()
        near, far = ground.relays[1], [ground.relays[index] for index in (2, 3)]
        ground.sever(2, 3)
        for index in (2, 3):
            ground.relays.pop(index)
            ground.lead_to(lead, index)
            ground.start(f"{index}-again", index)
        ground.wait_for_ranks(1, 4, 60)
        other = replace(ground, 1)
        for relay in far:  # these agents now reach the new lead
            relay.divert(other.port)
        wait_for(lambda: has_message(other), "the other lead reports that it has only half", 60)
        near.sever()
        near.divert(other.port)
        wait_for(lambda: "the lead is gone" in ground.log("1"), "node 1 has lost its lead", 60)
        ground.agents["1"].process.send_signal(signal.SIGTERM)
        wait_for(
            lambda: "ended permanently" in ground.log("0-again"), "its farewell has arrived", 60
        )
        ground.wait_for_ranks(2, 3, 60)
        assert finish(ground, lead).phase is Phase.SUCCEEDED
        assert len(ground.check_one_world()) == 3
        assert "nodes of attempt 1" in other.messages("OneWorld")[-1]

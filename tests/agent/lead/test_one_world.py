"""Conditions for starting an attempt: which agents of the last one are present or may still run ranks."""

from __future__ import annotations

import asyncio

import pytest
from tls_peers import until

from windlass.agent.lead.node_table import OneWorld
from windlass.agent.silence_limits import Disconnect, SilenceLimits
from windlass.wire.lead_handover import AgentIdentity, LeadHandover, LostLead

SHORT = SilenceLimits(silence_s=0.05, fence_s=0.1, cut_grace_s=0.05, slack_s=0.05)


def seats(text):
    """Return seats from text like `0 1 2b`.

    A letter after the index marks another agent of that node.
    """
    return tuple(AgentIdentity(index=int(word[0]), incarnation=word[1:]) for word in text.split())


def find(last, here, *, own="0", is_complete=False, is_elastic=True, report=lambda world: None):
    async def run():
        world = OneWorld(seats(own)[0], SHORT, wake=lambda: None)
        report(world)
        memory = LeadHandover(attempt=0, seats=seats(last)) if last is not None else LeadHandover()
        return world.find_obstacle(
            memory, seats(here), is_complete=is_complete, is_elastic=is_elastic
        )

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("last", "here", "own", "is_complete", "may"),
    [
        (None, "0 1", "0", False, True),  # the first attempt
        ("0 1 2 3", "0 1 2", "0", False, True),
        ("0 1 2 3", "0 1", "0", False, False),  # half
        ("0 1 2 3", "0 1 2b 3b", "0", True, True),  # half of the nodes, and the others are replaced
        ("0 1 2 3", "0b 1b 2 3", "0b", True, False),  # half, with another lead
        ("0 1 2 3", "0b 1b 2b 3", "0b", True, False),
        ("0 1 2", "0 1", "0", False, True),
        ("0 1 2", "0b 1 2", "0b", True, True),
        ("0 1 2", "0b 1b 2", "0b", True, False),
        ("0 1", "0", "0", False, False),
        ("0", "0", "0", False, True),
        ("", "0b 1b", "0b", False, False),  # the last attempt's agents are unknown
        ("", "0b 1b", "0b", True, True),
    ],
)
def test_more_than_half_of_the_last_attempt(last, here, own, is_complete, may):
    assert (find(last, here, own=own, is_complete=is_complete) == "") is may


def test_fixed_number_of_nodes_needs_all_but_no_majority():
    assert find("0 1", "0 1b", is_complete=True, is_elastic=False) == ""


def test_agents_that_have_exited_are_not_counted():
    def report(world):
        for seat in seats("2 3"):
            world.lose(seat, Disconnect.CLOSED)

    assert find("0 1 2 3", "0 1", report=report) == ""
    assert "only 1 of the 2 nodes" in find("0 1 2 3", "0", report=report)


def test_missing_nodes_are_named():
    found = find("0 1 2 3", "0 2")
    assert "only 2 of the 4 nodes of attempt 0 are connected, which is not more than half" in found
    assert found.endswith("Waiting for node 1, node 3 to come back")


@pytest.mark.parametrize("is_elastic", [True, False])
def test_isolated_node_gets_time_to_end_its_ranks(is_elastic):
    async def run():
        woken = []
        world = OneWorld(seats("0")[0], SHORT, wake=lambda: woken.append(1))

        def find():
            last, here = LeadHandover(attempt=0, seats=seats("0 1 2")), seats("0 1 2b")
            return world.find_obstacle(last, here, is_complete=True, is_elastic=is_elastic)

        world.lose(seats("2")[0], Disconnect.CUT)
        assert find() == "node 2 may still be running ranks of attempt 0"
        await until(lambda: woken, "its grace is over")
        assert find() == ""
        world.lose(seats("2")[0], Disconnect.CUT)
        world.join(seats("2")[0])
        assert find() == ""

    asyncio.run(run())


def test_lead_waits_until_a_leaving_node_reports_its_ranks_dead():
    def leave(world):
        world.lose(seats("2")[0], Disconnect.LEAVING)

    def leave_and_end(world):
        leave(world)
        world.lose(world.find_unreachable(2), Disconnect.CLOSED)

    assert find("0 1 2", "0 1", report=leave).startswith("node 2 may still be running")
    assert find("0 1 2", "0 1", report=leave_and_end) == ""


@pytest.mark.parametrize(
    ("here", "is_closed", "waits"),
    [
        ("0b 1 2", False, True),  # the old lead may be in the other partition
        ("0b 1 2", True, False),  # it is dead
        ("0b 1 2b", True, True),  # node 2 may not have noticed yet
    ],
)
def test_a_new_lead_waits_for_the_ranks_of_the_old_one(here, is_closed, waits):
    async def run():
        woken = []
        world = OneWorld(seats("0b")[0], SHORT, wake=lambda: woken.append(1))
        last = LeadHandover(attempt=0, seats=seats("0 1 2"))
        world.record_lost_lead(last, LostLead(ago_s=0.0, is_closed=is_closed))

        def find():
            return world.find_obstacle(last, seats(here), is_complete=True, is_elastic=False)

        assert bool(find()) is waits
        await until(lambda: woken, "its grace is over")
        assert find() == ""

    asyncio.run(run())

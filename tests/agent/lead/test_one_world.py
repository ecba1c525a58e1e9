"""Whether an attempt may start: who of the last one is here, and who may still run ranks of it."""

from __future__ import annotations

import asyncio

import pytest
from tls_peers import until

from windlass.agent.lead.one_world import OneWorld
from windlass.agent.silence_limits import Parting, SilenceLimits
from windlass.wire.lead_handover import LeadHandover, LostLead, Seat

SIGHT = SilenceLimits(silence_s=0.05, fence_s=0.1, cut_grace_s=0.05, slack_s=0.05)


def seats(text):
    """`0 1 2b`: nodes by index; a letter tells another agent of the same index."""
    return tuple(Seat(index=int(word[0]), incarnation=word[1:]) for word in text.split())


def find(last, here, *, own="0", is_complete=False, is_elastic=True, tell=lambda world: None):
    async def run():
        world = OneWorld(seats(own)[0], SIGHT, wake=lambda: None)
        tell(world)
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
        ("0 1 2 3", "0 1 2b 3b", "0", True, True),  # half, and the others were replaced
        ("0 1 2 3", "0b 1b 2 3", "0b", True, False),  # half, with another lead
        ("0 1 2 3", "0b 1b 2b 3", "0b", True, False),
        ("0 1 2", "0 1", "0", False, True),
        ("0 1 2", "0b 1 2", "0b", True, True),
        ("0 1 2", "0b 1b 2", "0b", True, False),
        ("0 1", "0", "0", False, False),
        ("0", "0", "0", False, True),
        ("", "0b 1b", "0b", False, False),  # nobody knows who was there
        ("", "0b 1b", "0b", True, True),
    ],
)
def test_more_than_half_of_the_last_attempt(last, here, own, is_complete, may):
    assert (find(last, here, own=own, is_complete=is_complete) == "") is may


def test_a_fixed_number_of_nodes_needs_them_all_and_nothing_else():
    assert find("0 1", "0 1b", is_complete=True, is_elastic=False) == ""


def test_who_ended_for_good_does_not_count():
    def tell(world):
        for seat in seats("2 3"):
            world.lose(seat, Parting.CLOSED)

    assert find("0 1 2 3", "0 1", tell=tell) == ""
    assert "only 1 of the 2 nodes" in find("0 1 2 3", "0", tell=tell)


def test_what_is_missing_is_named():
    found = find("0 1 2 3", "0 2")
    assert "only 2 of the 4 nodes of attempt 0 are here, which is not more than half" in found
    assert found.endswith("Waiting for node 1, node 3 to come back")


@pytest.mark.parametrize("is_elastic", [True, False])
def test_a_node_that_was_cut_off_is_given_time_to_end_its_ranks(is_elastic):
    async def run():
        woken = []
        world = OneWorld(seats("0")[0], SIGHT, wake=lambda: woken.append(1))

        def find():
            last, here = LeadHandover(attempt=0, seats=seats("0 1 2")), seats("0 1 2b")
            return world.find_obstacle(last, here, is_complete=True, is_elastic=is_elastic)

        world.lose(seats("2")[0], Parting.CUT)
        assert find() == "node 2 may still be running ranks of attempt 0"
        await until(lambda: woken, "its time is over")
        assert find() == ""
        world.lose(seats("2")[0], Parting.CUT)
        world.join(seats("2")[0])
        assert find() == ""

    asyncio.run(run())


def test_a_node_that_leaves_is_waited_for_until_it_says_that_its_ranks_are_dead():
    def leave(world):
        world.lose(seats("2")[0], Parting.LEAVING)

    def leave_and_end(world):
        leave(world)
        world.lose(world.find_unseen(2), Parting.CLOSED)

    assert find("0 1 2", "0 1", tell=leave).startswith("node 2 may still be running")
    assert find("0 1 2", "0 1", tell=leave_and_end) == ""


@pytest.mark.parametrize(
    ("here", "is_closed", "waits"),
    [
        ("0b 1 2", False, True),  # the old lead may be beyond a cut
        ("0b 1 2", True, False),  # it is dead
        ("0b 1 2b", True, True),  # node 2 may not have noticed yet
    ],
)
def test_a_new_lead_waits_for_the_ranks_of_the_old_one(here, is_closed, waits):
    async def run():
        woken = []
        world = OneWorld(seats("0b")[0], SIGHT, wake=lambda: woken.append(1))
        last = LeadHandover(attempt=0, seats=seats("0 1 2"))
        world.hear_of_lost_lead(last, LostLead(ago_s=0.0, is_closed=is_closed))

        def find():
            return world.find_obstacle(last, seats(here), is_complete=True, is_elastic=False)

        assert bool(find()) is waits
        await until(lambda: woken, "its time is over")
        assert find() == ""

    asyncio.run(run())

"""Calls at a lead: first come, first served, one at a time, each on ranks that nobody else has."""

from __future__ import annotations

import pytest
from scripted_peers import make_profile, serve_calls

from windlass.wire.messages.calls import (
    AskCallStatus,
    CallQueued,
    CallResults,
    CallStarted,
    CallStatusTold,
)
from windlass.wire.messages.computes import ForkWorld, RunCall
from windlass.wire.messages.worlds import EndWorld, WorldCleared
from windlass.wire.status import Phase

KEPT = make_profile(slot="kept")


def test_a_call_is_given_to_its_ranks_and_its_answers_to_the_client():
    async def story(compute):
        client = await compute.visit()
        call = client.call(body=b"what is called")
        run = await compute.given(call)
        assert run.body == b"what is called"
        assert run.order.sizes == [14]
        run.answer(1, b"one")
        run.answer(0, b"zero")
        assert (await client.end_of(call)).state == "returned"
        assert client.values(call) == {0: b"zero", 1: b"one"}
        assert client.kinds(call) == ["results"]  # one frame: nobody had to wait

    serve_calls(story)


def test_calls_run_in_the_order_in_which_they_came_whoever_asked():
    async def story(compute):
        one, other = await compute.visit(), await compute.visit()
        first = one.call()
        run = await compute.given(first)
        second = other.call()
        told = await other.hear(CallQueued, id=second)
        assert (told.ahead, told.first) == (1, first)
        third = one.call()
        told = await one.hear(CallQueued, id=third)
        assert (told.ahead, told.first) == (2, first)
        order = [first]
        while len(order) < 3:
            run.finish()
            client, call = (other, second) if len(order) == 1 else (one, third)
            run = await compute.given(call)
            await client.hear(CallStarted, id=call)
            order.append(call)
        run.finish()
        await one.end_of(third)
        given = [order.id for order in compute.nodes[0].find(RunCall)]
        assert given == [first, second, third]

    serve_calls(story)


def test_the_status_of_a_call_says_how_many_are_before_it():
    async def story(compute):
        client = await compute.visit()
        first, second = client.call(), client.call()
        run = await compute.given(first)
        for call, phase, why in (
            (first, Phase.RUNNING, []),
            (second, Phase.PENDING, ["1 call before it"]),
        ):
            client.say(AskCallStatus(id=call))
            status = (await client.hear(CallStatusTold, id=call)).status
            assert status.phase is phase
            assert [condition.message for condition in status.conditions] == why
        run.finish()
        await client.end_of(first)
        client.say(AskCallStatus(id=first))
        status = (await client.hear(CallStatusTold, id=first)).status
        assert status.phase is Phase.SUCCEEDED
        assert [rank.state for rank in status.ranks] == ["returned", "returned"]
        (await compute.given(second)).finish()

    serve_calls(story)


def test_a_call_waits_for_the_ranks_of_the_one_before_to_be_gone():
    async def story(compute):
        node = compute.nodes[1]
        del node.acts[EndWorld]
        client = await compute.visit()
        first = client.call()
        run = await compute.given(first)
        second = client.call()
        run.finish()
        assert (await client.end_of(first)).state == "returned"
        await node.hear(EndWorld, world=run.world)
        await client.info()
        assert [order.id for order in compute.nodes[0].find(RunCall)] == [first]
        node.say(WorldCleared(world=run.world))
        (await compute.given(second)).finish()
        await client.end_of(second)

    serve_calls(story)


def test_kept_ranks_take_a_call_without_the_queue():
    """Nothing is forked, nobody is told to wait, and the answer is all that is said."""

    async def story(compute):
        client = await compute.visit()
        kept = await compute.run(client, KEPT)
        for _ in range(3):
            call = client.call(KEPT)
            run = await compute.given(call)
            assert run.world == kept.world
            run.finish()
            await client.hear(CallResults, id=call)
            assert client.kinds(call) == ["results"]
        for node in compute.nodes.values():
            assert len(node.find(ForkWorld)) == 1
            assert node.find(EndWorld) == []

    serve_calls(story)


def test_kept_ranks_take_one_call_at_a_time_too():
    async def story(compute):
        client = await compute.visit()
        kept = await compute.run(client, KEPT)
        first, second = client.call(KEPT), client.call(KEPT)
        assert (await client.hear(CallQueued, id=second)).first == first
        (await compute.given(first)).finish()
        run = await compute.given(second)
        assert run.world == kept.world
        run.finish()
        assert (await client.end_of(second)).state == "returned"

    serve_calls(story)


@pytest.mark.parametrize("profile", [make_profile(), KEPT], ids=["fresh", "kept"])
def test_a_client_that_hung_up_is_not_missed_and_its_call_goes_on(profile):
    async def story(compute):
        leaving, staying = await compute.visit(), await compute.visit()
        call = leaving.call(profile)
        run = await compute.given(call)
        await leaving.hang_up()
        run.finish()
        await compute.rest(staying)
        listed = (await staying.info()).calls
        assert [(one.id, one.state) for one in listed] == [(call, "returned")]

    serve_calls(story)


def test_of_a_call_that_collects_its_head_rank_0_alone_is_told():
    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(collect="head"))
        run = await compute.given(call)
        run.answer(1, b"unheard")
        run.answer(0, b"heard")
        await client.end_of(call)
        assert client.values(call) == {0: b"heard"}

    serve_calls(story)

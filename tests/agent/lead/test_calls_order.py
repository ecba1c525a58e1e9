"""Order of calls at a lead: first come, first served, one at a time, each on its own ranks."""

from __future__ import annotations

import pytest
from scripted_peers import make_profile, serve_calls

from windlass.wire.messages.calls import (
    AskCallStatus,
    CallQueued,
    CallResults,
    CallStarted,
    CallStatusReply,
)
from windlass.wire.messages.computes import ForkWorld, RunCall
from windlass.wire.messages.worlds import EndWorld, WorldCleared
from windlass.wire.status import Phase

KEPT = make_profile(slot="kept")


def test_call_reaches_its_ranks_and_answers_reach_the_client():
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
        assert client.kinds(call) == ["results"]  # all in one frame, because the call did not wait

    serve_calls(story)


def test_calls_of_all_clients_run_in_arrival_order():
    async def story(compute):
        one, other = await compute.visit(), await compute.visit()
        first = one.call()
        run = await compute.given(first)
        second = other.call()
        queued = await other.hear(CallQueued, id=second)
        assert (queued.ahead, queued.first) == (1, first)
        third = one.call()
        queued = await one.hear(CallQueued, id=third)
        assert (queued.ahead, queued.first) == (2, first)
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


def test_status_of_a_call_counts_the_calls_before_it():
    async def story(compute):
        client = await compute.visit()
        first, second = client.call(), client.call()
        run = await compute.given(first)
        for call, phase, why in (
            (first, Phase.RUNNING, []),
            (second, Phase.PENDING, ["1 call before it"]),
        ):
            client.say(AskCallStatus(id=call))
            status = (await client.hear(CallStatusReply, id=call)).status
            assert status.phase is phase
            assert [condition.message for condition in status.conditions] == why
        run.finish()
        await client.end_of(first)
        client.say(AskCallStatus(id=first))
        status = (await client.hear(CallStatusReply, id=first)).status
        assert status.phase is Phase.SUCCEEDED
        assert [rank.state for rank in status.ranks] == ["returned", "returned"]
        (await compute.given(second)).finish()

    serve_calls(story)


def test_call_waits_until_the_previous_ranks_have_exited():
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


def test_kept_ranks_run_a_call_without_queueing():
    """No rank is forked, no wait is reported, and the answer is the only message."""

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


def test_kept_ranks_run_one_call_at_a_time():
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
def test_call_continues_after_its_client_disconnects(profile):
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


def test_collect_head_sends_only_rank_0():
    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(collect="head"))
        run = await compute.given(call)
        run.answer(1, b"unheard")
        run.answer(0, b"heard")
        await client.end_of(call)
        assert client.values(call) == {0: b"heard"}

    serve_calls(story)

"""Calls and computes ended by a client, a time limit or inactivity."""

from __future__ import annotations

import signal

import pytest
from scripted_peers import make_profile, serve_calls
from tls_peers import until

from windlass import names
from windlass.wire.messages.calls import (
    CallAccepted,
    CallQueued,
    CallWaiting,
    ComputeInfo,
    ConfigureCompute,
    EndCall,
    LeadEnding,
)
from windlass.wire.messages.computes import RunCall
from windlass.wire.messages.jobs import Acknowledged, CancelJob
from windlass.wire.messages.worlds import EndWorld
from windlass.wire.status import FailureKind, Phase

KEPT = make_profile(slot="kept")
BOTH = pytest.mark.parametrize("profile", [make_profile(), KEPT], ids=["fresh", "kept"])


async def until_ended(compute):
    await until(lambda: compute.status.phase.is_final, "the compute has ended")
    [*_, last] = compute.status.conditions
    return compute.status, last.reason


# -- calls that are cancelled --------------------------------------------------------------------


def test_cancelled_waiting_call_never_runs():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        first = client.call()
        run = await compute.given(first)
        second, third = client.call(), client.call()
        await client.hear(CallQueued, id=third)
        other.say(EndCall(id=second, why="changed my mind"))
        assert (await other.hear(Acknowledged)).id == second
        end = await client.end_of(second)
        assert (end.state, end.verdict.kind) == ("cancelled", FailureKind.CANCELLED)
        assert end.verdict.message == "changed my mind"
        run.finish()
        (await compute.given(third)).finish()
        await client.end_of(third)
        assert [order.id for order in compute.nodes[0].find(RunCall)] == [first, third]

    serve_calls(story)


@BOTH
@pytest.mark.parametrize("interrupt", [False, True])
def test_ranks_of_a_cancelled_call_get_a_signal(profile, interrupt):
    async def story(compute):
        client = await compute.visit()
        await compute.run(client, profile)
        call = client.call(profile)
        run = await compute.given(call)
        client.say(EndCall(id=call, interrupt=interrupt))
        for node in compute.nodes.values():
            order = await node.hear(EndWorld, world=run.world)
            assert order.signal == (signal.SIGINT if interrupt else signal.SIGTERM)
            assert not order.now
        end = await client.end_of(call)
        assert (end.state, end.verdict.message) == ("cancelled", "cancelled by a client")
        again = await compute.run(client, profile)
        assert again.world != run.world

    serve_calls(story)


def test_ranks_that_fail_on_cancel_do_not_change_the_verdict():
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        call = client.call()
        run = await compute.given(call)
        client.say(EndCall(id=call))
        await node.hear(EndWorld)
        run.lose(1, signal=signal.SIGTERM)
        assert (await client.end_of(call)).state == "cancelled"

    serve_calls(story)


def test_a_call_that_waits_for_a_node_is_cancelled():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        await client.hear(CallWaiting, id=call)
        client.say(EndCall(id=call))
        assert (await client.end_of(call)).state == "cancelled"
        assert compute.nodes[0].worlds() == []

    serve_calls(story, here=(0,))


def test_cancelling_an_ended_or_unknown_call_changes_nothing():
    async def story(compute):
        client = await compute.visit()
        run = await compute.run(client)
        for call in (run.call, "never-was"):
            client.say(EndCall(id=call))
            assert (await client.hear(Acknowledged)).id == call
        listed = (await client.info()).calls
        assert [(one.id, one.state) for one in listed] == [(run.call, "returned")]

    serve_calls(story)


# -- time limits of calls ------------------------------------------------------------------------


@BOTH
def test_call_over_its_time_limit_is_ended(profile):
    async def story(compute):
        client = await compute.visit()
        await compute.run(client, profile)
        call = client.call(profile.replaced(timeout_s=0.05))
        end = await client.end_of(call)
        assert (end.state, end.verdict.kind) == ("failed", FailureKind.TIMEOUT)
        assert end.verdict.message == "the call was not done after its time limit of 0.05 s"
        await compute.run(client, profile)

    serve_calls(story)


def test_time_limit_includes_the_queue_time():
    async def story(compute):
        client = await compute.visit()
        first = client.call()
        run = await compute.given(first)
        second = client.call(make_profile(timeout_s=0.05))
        end = await client.end_of(second)
        assert end.verdict.kind is FailureKind.TIMEOUT
        run.finish()
        await client.end_of(first)
        assert compute.nodes[0].find(RunCall, id=second) == []

    serve_calls(story)


# -- the end of the compute ----------------------------------------------------------------------


def test_a_compute_that_is_ended_ends_its_calls():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        first, second = client.call(), client.call()
        run = await compute.given(first)
        await client.hear(CallQueued, id=second)
        other.say(CancelJob(why="enough", interrupt=True))
        await other.hear(Acknowledged)
        for call in (first, second):
            end = await client.end_of(call)
            assert (end.state, end.verdict.message) == ("cancelled", "enough")
        assert (await compute.nodes[1].hear(EndWorld, world=run.world)).signal == signal.SIGINT
        status, reason = await until_ended(compute)
        assert (status.phase, reason) == (Phase.CANCELLED, names.REASON_CANCELLED)
        assert status.verdict.message == "enough"
        assert compute.nodes[0].find(RunCall, id=second) == []
        ended = {order.world for order in compute.nodes[1].find(EndWorld)}
        assert ended == set(compute.nodes[1].worlds())

    serve_calls(story)


def test_call_to_an_ending_compute_is_left_to_the_next_one():
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        await compute.run(client, KEPT)
        del node.acts[EndWorld]
        client.say(CancelJob())
        await node.hear(EndWorld)
        call = client.call(KEPT)
        assert (await client.hear(LeadEnding)).id == call
        assert client.kinds(call) == ["leaving"]

    serve_calls(story)


def test_compute_cancelled_with_now_kills_its_ranks():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call())
        client.say(CancelJob(now=True))
        assert (await compute.nodes[1].hear(EndWorld, world=run.world)).now
        await until_ended(compute)

    serve_calls(story)


# -- inactivity ----------------------------------------------------------------------------------


def test_inactive_compute_succeeds():
    async def story(compute):
        client = await compute.visit()
        client.say(ConfigureCompute(ttl_s=0.05))
        status, reason = await until_ended(compute)
        assert (status.phase, reason) == (Phase.SUCCEEDED, names.REASON_INACTIVE)
        assert status.verdict.message == "nothing was called for 0.05 s (inactivity_ttl)"

    serve_calls(story)


def test_plan_sets_the_inactivity_limit():
    async def story(compute):
        status, reason = await until_ended(compute)
        assert (status.phase, reason) == (Phase.SUCCEEDED, names.REASON_INACTIVE)

    serve_calls(story, ttl_s=0.2, nodes=1)


def test_a_compute_does_not_end_while_a_call_runs():
    """The call's own time limit is longer than the compute's, and ends the call."""

    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(timeout_s=2.0))
        await compute.given(call)
        client.say(ConfigureCompute(ttl_s=0.05))
        end = await client.end_of(call)
        assert (end.state, end.verdict.kind) == ("failed", FailureKind.TIMEOUT)
        assert "its time limit of 2 s" in end.verdict.message
        await until_ended(compute)

    serve_calls(story)


def test_client_can_remove_the_inactivity_limit():
    async def story(compute):
        client = await compute.visit()
        client.say(ConfigureCompute(ttl_s=None))
        assert (await client.hear(ComputeInfo)).ttl_s is None
        client.say(ConfigureCompute(env={"A": "1"}))  # without ttl_s
        assert (await client.hear(ComputeInfo)).ttl_s is None

    serve_calls(story, ttl_s=100.0)


def test_detached_call_ends_with_its_compute():
    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(detach=True))
        await client.hear(CallAccepted, id=call)
        await compute.given(call)
        client.say(CancelJob())
        await until_ended(compute)
        listed = (await client.info()).calls
        assert [(one.id, one.state) for one in listed] == [(call, "cancelled")]

    serve_calls(story)

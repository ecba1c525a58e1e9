"""Requests of clients to a compute's lead over its socket, and the replies."""

from __future__ import annotations

import pytest
from scripted_peers import make_profile, serve_calls, shorten
from tls_peers import until

from windlass import names
from windlass.wire.messages.calls import (
    AskCall,
    AskCallLogs,
    AskCallStatus,
    AttendCall,
    CallAccepted,
    CallEnded,
    CallForgotten,
    CallLogsReply,
    CallPrinted,
    CallResult,
    CallUnknown,
    ComputeInfo,
    ConfigureCompute,
    ScaleNodes,
    SetProfile,
)
from windlass.wire.messages.computes import RankPrinted, RunCall
from windlass.wire.messages.jobs import NodeTrouble
from windlass.wire.messages.link import Refused
from windlass.wire.status import FailureKind

KEPT = make_profile(slot="kept")
DETACHED = make_profile(detach=True)


# -- returning to a call ----------------------------------------------------------------------------


def test_detached_call_sends_results_only_after_attend():
    async def story(compute):
        client = await compute.visit()
        call = client.call(DETACHED)
        await client.hear(CallAccepted, id=call)
        run = await compute.given(call)
        run.finish()
        await compute.rest(client)
        assert client.kinds(call) == ["accepted"]
        client.say(AttendCall(id=call))
        assert (await client.hear(CallEnded, id=call)).state == "returned"
        assert client.kinds(call) == ["accepted", "accepted", "result", "result", "done"]

    serve_calls(story)


def test_attend_sends_earlier_answers_and_then_the_rest():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        call = client.call()
        run = await compute.given(call)
        run.answer(0, b"early")
        await client.info()
        other.say(AttendCall(id=call))
        message, body = await other.hear_whole(CallResult, id=call)
        assert (message.rank, message.state, body) == (0, "returned", b"early")
        run.answer(1, b"late")
        for one in (client, other):
            assert (await one.end_of(call)).state == "returned"
        assert other.values(call)[1] == b"late"

    serve_calls(story)


def test_attend_to_a_failed_call_sends_its_verdict():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        call = client.call()
        (await compute.given(call)).fail(1)
        first = await client.end_of(call)
        other.say(AttendCall(id=call))
        assert await other.hear(CallEnded, id=call) == first
        assert other.kinds(call) == ["accepted", "result", "done"]

    serve_calls(story)


@pytest.mark.parametrize("profile", [make_profile(), KEPT], ids=["fresh", "kept"])
def test_call_sent_twice_runs_once(profile):
    """A client whose connection broke while sending cannot know how much arrived."""

    async def story(compute):
        client, again = await compute.visit(), await compute.visit()
        call = client.call(profile)
        run = await compute.given(call)
        await client.hang_up()
        again.call(profile, again=call)
        await again.hear(CallAccepted, id=call)
        run.finish()
        assert (await again.end_of(call)).state == "returned"
        again.call(profile, again=call)  # also after it has ended
        await again.hear(CallEnded, id=call)
        assert len(compute.nodes[0].find(RunCall)) == 1

    serve_calls(story)


def test_call_that_never_arrived_is_unknown():
    async def story(compute):
        client = await compute.visit()
        await compute.run(client)
        for question in (
            AttendCall(id="never", since=1),
            AskCallStatus(id="never"),
            AskCallLogs(id="never", seen={}),
        ):
            client.say(question)
            assert (await client.hear(CallUnknown)).id == "never"

    serve_calls(story)


def test_dropped_call_is_forgotten_and_never_run_again(monkeypatch):
    shorten(monkeypatch, kept_calls=1)

    async def story(compute):
        client = await compute.visit()
        old = (await compute.run(client, KEPT)).call
        await compute.run(client, KEPT)
        client.call(KEPT, again=old)
        assert (await client.hear(CallForgotten)).id == old
        for question in (AttendCall(id=old), AskCallStatus(id=old), AskCallLogs(id=old, seen={})):
            client.say(question)
            assert (await client.hear(CallForgotten)).id == old
        assert len(compute.nodes[0].find(RunCall, id=old)) == 1

    serve_calls(story)


def test_call_older_than_all_kept_ids_is_not_called_unknown(monkeypatch):
    """The call may have run before the oldest kept ID."""
    shorten(monkeypatch, kept_calls=1, kept_ids=2)

    async def story(compute):
        client = await compute.visit()
        for _ in range(8):
            await compute.run(client, KEPT)
        client.say(AttendCall(id="perhaps", since=0))
        await client.hear(CallForgotten)
        client.say(AttendCall(id="surely not", since=8))
        await client.hear(CallUnknown)

    serve_calls(story)


# -- profiles and malformed messages ---------------------------------------------------------------


def test_profile_is_sent_once_per_link():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        client.say(SetProfile(key="mine", profile=KEPT))
        for number in range(2):
            client.say(AskCall(id=f"call-{number}", profile="mine"))
            (await compute.given(f"call-{number}")).finish()
            await client.end_of(f"call-{number}")
        other.say(AskCall(id="call-2", profile="mine"))
        why = (await other.hear(Refused)).why
        assert why == "the call 'call-2' refers to a profile that was not sent"
        await until(lambda: other.has_hung_up, "the other client is disconnected")
        assert (await client.info()).num_calls == 2

    serve_calls(story)


def test_profile_can_be_replaced():
    async def story(compute):
        client = await compute.visit()
        client.say(SetProfile(key="mine", profile=KEPT))
        client.say(SetProfile(key="mine", profile=KEPT.replaced(method="step")))
        client.say(AskCall(id="call", profile="mine"))
        run = await compute.given("call")
        assert run.order.method == "step"
        run.finish()

    serve_calls(story)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        (
            {"type": "fork_world"},
            "the client may not send 'fork_world' to the compute's lead",
        ),
        ({"type": "answer", "call": "x"}, "the client may not send 'answer'"),
        ({"kind": "call"}, "the client may not send None"),
        ({"type": "call", "profile": "p"}, "a malformed message (call): it has no id"),
        ({"type": "call", "id": 7, "profile": "p"}, "its id is 7, not a str"),
        ({"type": "call", "id": "x", "profile": "p", "sizes": [-1]}, "its sizes is -1"),
        ({"type": "scale", "nodes": "many"}, "its nodes is 'many', not a count"),
        ({"type": "attend"}, "a malformed message (attend): it has no id"),
        ({"type": "profile", "key": "p", "profile": {"name": "x"}}, "it has no framework"),
        ({"type": "configure", "env": {"A": 1}}, "its env is 1, not a str"),
    ],
)
def test_malformed_message_disconnects_only_its_client(header, why):
    async def story(compute):
        client, wrong = await compute.visit(), await compute.visit()
        call = client.call()
        run = await compute.given(call)
        wrong.link.send(header)
        assert why in (await wrong.hear(Refused)).why
        await until(lambda: wrong.has_hung_up, "it is disconnected")
        run.finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)


@pytest.mark.parametrize(
    "header",
    [
        {"type": "call", "id": "x"},
        {"type": "outcome", "given": "", "answered": "", "outcome": {"rank": 0}},
        {"type": "cleared", "world": -1},
    ],
)
def test_node_that_sends_a_malformed_message_is_lost(header):
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        call = client.call()
        await compute.given(call)
        node.link.send(header)
        await node.hear(Refused)
        end = await client.end_of(call)
        assert (end.verdict.kind, end.verdict.node) == (FailureKind.LOST_NODE, 1)

    serve_calls(story)


# -- output of ranks -------------------------------------------------------------------------------


def test_output_of_ranks_is_sent_to_listeners():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        compute.nodes[1].say(RankPrinted(world=run.world, rank=1, call=call), b"lines\n")
        message, body = await client.hear_whole(CallPrinted, id=call)
        assert (message.rank, body) == (1, b"lines\n")
        compute.nodes[1].say(RankPrinted(world=run.world, rank=1, call="another"), b"stray\n")
        run.finish()
        await client.end_of(call)
        assert len(client.find(CallPrinted)) == 1

    serve_calls(story)


def test_logs_are_read_from_the_position_of_the_client():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        lines = [b"one\n", b"two\n"]
        for line in lines:
            compute.nodes[1].say(RankPrinted(world=run.world, rank=1, call=call), line)
        await client.hear(CallPrinted)
        await client.hear(CallPrinted)
        for seen, left in (({}, b"one\ntwo\n"), ({"1": 4}, b"two\n"), ({"1": 8}, b"")):
            client.say(AskCallLogs(id=call, seen=seen))
            message, body = await client.hear_whole(CallLogsReply, id=call)
            assert (message.files, body) == ([[1, 1, len(left)]], left)
        run.finish()

    serve_calls(story, is_pod=True)


# -- the compute ---------------------------------------------------------------------------------


def test_info_of_the_lead():
    async def story(compute):
        client = await compute.visit()
        before = await client.info()
        assert (before.job_id, before.version) == ("warm-ab2cd", names.VERSION)
        assert (before.nodes, before.here, before.num_calls) == (3, [0, 1], 0)
        assert before.spill == str(compute.spill)
        run = await compute.given(client.call())
        during = await client.info()
        assert during.idle_s == 0
        assert [(call.id, call.state) for call in during.calls] == [(run.call, "running")]
        run.finish()
        await compute.rest(client)
        after = await client.info()
        assert after.num_calls == 1
        assert after.born == before.born

    serve_calls(story, nodes=3, here=(0, 1))


def test_deployment_record_is_shared_between_clients():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        client.say(ConfigureCompute(record={"train": {"slot": "a"}}))
        client.say(ConfigureCompute(record={"serve": {"slot": "b"}}))
        await client.hear(ComputeInfo)
        await client.hear(ComputeInfo)
        record = (await other.info()).record
        assert record == {"train": {"slot": "a"}, "serve": {"slot": "b"}}

    serve_calls(story)


@pytest.mark.parametrize(
    ("order", "there"),
    [
        (ScaleNodes(nodes=5), 5),
        (ScaleNodes(nodes=1), 1),
        (ScaleNodes(nodes=5, at_least=True), 5),
        (ScaleNodes(nodes=1, at_least=True), 3),
    ],
)
def test_scale_reply_has_the_old_and_new_number_of_nodes(order, there):
    async def story(compute):
        client = await compute.visit()
        client.say(order)
        info = await client.hear(ComputeInfo)
        assert (info.before, info.nodes) == (3, there)

    serve_calls(story, nodes=3)


def test_trouble_of_a_node_is_in_the_status():
    async def story(compute):
        compute.nodes[1].say(NodeTrouble(reason="LogTruncated", message="rank-1.log is incomplete"))
        await until(
            lambda: (
                ("LogTruncated", "rank-1.log is incomplete")
                in [(c.reason, c.message) for c in compute.status.conditions]
            ),
            "the trouble is in the status",
        )

    serve_calls(story)

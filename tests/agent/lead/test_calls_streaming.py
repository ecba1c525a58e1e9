"""Calls that stream: items of rank 0 reach all listeners in order, and no faster than they read."""

from __future__ import annotations

import asyncio

from scripted_peers import JOB, make_profile, serve_calls, shorten

from windlass.wire.frames import make_hello, render_frame
from windlass.wire.messages.calls import (
    AskCall,
    AttendCall,
    CallAccepted,
    CallEnded,
    CallResult,
    SetProfile,
)
from windlass.wire.messages.computes import CallItem, SendMore
from windlass.wire.messages.worlds import EndWorld
from windlass.wire.status import FailureKind

STREAM = make_profile(stream=True)


def yield_item(run, body, **fields):
    """Send an item that rank 0 yielded."""
    run.ranks[0].say(CallItem(call=run.call, sizes=[len(body)], at_s=1.0, **fields), body)


def items(client, call):
    """Return the items of a stream that a client received, in order."""
    return [body for m, body in client.heard if type(m) is CallResult and m.id == call]


def test_items_arrive_in_order_and_immediately():
    async def story(compute):
        client = await compute.visit()
        call = client.call(STREAM)
        run = await compute.given(call)
        for number in range(5):
            yield_item(run, b"%d" % number)
            message = await client.hear(CallResult, id=call)
            assert not message.state  # an empty state means the stream continues
            assert message.rank == 0
        run.finish()
        assert (await client.end_of(call)).state == "returned"
        assert items(client, call) == [b"0", b"1", b"2", b"3", b"4"]

    serve_calls(story)


def test_waiting_stream_resumes_when_its_readers_have_caught_up():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(STREAM))
        yield_item(run, b"much", waits=True)
        for node in compute.nodes.values():
            assert (await node.hear(SendMore)).world == run.world
        run.finish()
        await client.end_of(run.call)

    serve_calls(story)


def test_a_stream_waits_for_a_reader_that_does_not_read():
    async def story(compute):
        other = await compute.visit()
        reader, writer = await asyncio.open_unix_connection(str(compute.path), limit=1 << 10)
        for message in (
            make_hello(role="client", job_id=JOB),
            SetProfile(key="p", profile=STREAM),
            AskCall(id="slow", profile="p"),
        ):
            writer.write(render_frame(message))
        run = await compute.given("slow")
        yield_item(run, b"x" * (8 << 20), waits=True)
        await other.info()
        assert compute.nodes[0].find(SendMore) == []
        while not compute.nodes[0].find(SendMore):
            assert await reader.read(1 << 20)
        run.finish()
        writer.close()
        await writer.wait_closed()
        await compute.rest(other)

    serve_calls(story)


def test_late_client_gets_earlier_and_later_items():
    async def story(compute):
        first, second = await compute.visit(), await compute.visit()
        call = first.call(STREAM)
        run = await compute.given(call)
        yield_item(run, b"one")
        await first.hear(CallResult)
        second.say(AttendCall(id=call))
        await second.hear(CallAccepted, id=call)
        yield_item(run, b"two")
        run.finish()
        for client in (first, second):
            assert (await client.end_of(call)).state == "returned"
            assert items(client, call) == [b"one", b"two"]

    serve_calls(story)


def test_large_item_is_sent_as_a_path_on_one_machine():
    async def story(compute):
        client = await compute.visit()
        call = client.call(STREAM)
        run = await compute.given(call)
        path = compute.spill / "item"
        path.write_bytes(b"large")
        yield_item(run, b"", file=str(path))
        assert (await client.hear(CallResult, id=call)).file == str(path)
        run.finish()
        await client.end_of(call)

    serve_calls(story)


def test_stream_without_listeners_is_ended(monkeypatch):
    shorten(monkeypatch, abandoned_s=0.05)

    async def story(compute):
        leaving, staying = await compute.visit(), await compute.visit()
        call = leaving.call(STREAM)
        run = await compute.given(call)
        await leaving.hang_up()
        await compute.nodes[0].hear(EndWorld, world=run.world)
        staying.say(AttendCall(id=call))
        verdict = (await staying.hear(CallEnded, id=call)).verdict
        assert verdict.kind is FailureKind.CANCELLED
        assert verdict.message == "no client listened to its stream any more"

    serve_calls(story)


def test_stream_with_another_listener_continues(monkeypatch):
    """The time limit, which is longer than the abandonment limit, ends the call."""
    shorten(monkeypatch, abandoned_s=0.01)

    async def story(compute):
        leaving, staying = await compute.visit(), await compute.visit()
        call = leaving.call(STREAM.replaced(timeout_s=3.0))
        await compute.given(call)
        staying.say(AttendCall(id=call))
        await staying.hear(CallAccepted, id=call)
        await leaving.hang_up()
        assert (await staying.end_of(call)).verdict.kind is FailureKind.TIMEOUT

    serve_calls(story)


def test_items_after_the_end_are_ignored_and_their_files_deleted():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(STREAM))
        run.fail(0)
        await client.end_of(run.call)
        path = compute.spill / "item"
        path.write_bytes(b"late")
        yield_item(run, b"", file=str(path))
        await client.info()
        assert not path.exists()
        assert items(client, run.call) == []

    serve_calls(story)

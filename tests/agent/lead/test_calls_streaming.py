"""Calls that stream: what rank 0 yields reaches all who listen, in order, no faster than they read."""

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


def give(run, body, **fields):
    """Rank 0 yields something."""
    run.ranks[0].say(CallItem(call=run.call, sizes=[len(body)], at_s=1.0, **fields), body)


def items(client, call):
    """What a client was told of a stream, in order."""
    return [body for m, body in client.heard if type(m) is CallResult and m.id == call]


def test_items_come_in_order_and_at_once():
    async def story(compute):
        client = await compute.visit()
        call = client.call(STREAM)
        run = await compute.given(call)
        for number in range(5):
            give(run, b"%d" % number)
            message = await client.hear(CallResult, id=call)
            assert not message.state  # it goes on
            assert message.rank == 0
        run.finish()
        assert (await client.end_of(call)).state == "returned"
        assert items(client, call) == [b"0", b"1", b"2", b"3", b"4"]

    serve_calls(story)


def test_a_stream_that_waits_goes_on_when_its_readers_have_caught_up():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(STREAM))
        give(run, b"much", waits=True)
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
        give(run, b"x" * (8 << 20), waits=True)
        await other.info()
        assert compute.nodes[0].find(SendMore) == []
        while not compute.nodes[0].find(SendMore):
            assert await reader.read(1 << 20)
        run.finish()
        writer.close()
        await writer.wait_closed()
        await compute.rest(other)

    serve_calls(story)


def test_who_comes_later_is_told_what_came_before_and_what_comes():
    async def story(compute):
        first, second = await compute.visit(), await compute.visit()
        call = first.call(STREAM)
        run = await compute.given(call)
        give(run, b"one")
        await first.hear(CallResult)
        second.say(AttendCall(id=call))
        await second.hear(CallAccepted, id=call)
        give(run, b"two")
        run.finish()
        for client in (first, second):
            assert (await client.end_of(call)).state == "returned"
            assert items(client, call) == [b"one", b"two"]

    serve_calls(story)


def test_a_large_item_is_told_by_its_file_on_one_machine():
    async def story(compute):
        client = await compute.visit()
        call = client.call(STREAM)
        run = await compute.given(call)
        path = compute.spill / "item"
        path.write_bytes(b"large")
        give(run, b"", file=str(path))
        assert (await client.hear(CallResult, id=call)).file == str(path)
        run.finish()
        await client.end_of(call)

    serve_calls(story)


def test_a_stream_to_which_nobody_listens_is_ended(monkeypatch):
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


def test_a_stream_to_which_another_client_listens_goes_on(monkeypatch):
    """Until its own limit, which is longer than it takes to be abandoned."""
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


def test_items_of_a_call_that_has_ended_are_nobodys_and_their_files_go():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(STREAM))
        run.fail(0)
        await client.end_of(run.call)
        path = compute.spill / "item"
        path.write_bytes(b"late")
        give(run, b"", file=str(path))
        await client.info()
        assert not path.exists()
        assert items(client, run.call) == []

    serve_calls(story)

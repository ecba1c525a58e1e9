"""Large payloads of calls: files on one machine, parts between machines, and deleted afterwards."""

from __future__ import annotations

import os

import pytest
from scripted_peers import make_profile, serve_calls
from tls_peers import until

from windlass.wire.messages.calls import AttendCall, CallResult
from windlass.wire.messages.computes import CallItem, PayloadPart, RunCall
from windlass.wire.messages.link import Refused

PARTS = [b"one " * 1000, b"two " * 1000, b"three"]
WHOLE = b"".join(PARTS)


def send_parts(party, key):
    for part in PARTS:
        party.say(PayloadPart(payload=key), part)


def join_parts(party, key):
    """Return the payload that a party received in parts."""
    return b"".join(
        body for m, body in party.heard if isinstance(m, PayloadPart) and m.payload == key
    )


def write_payload(compute, name="answer"):
    """Write a large payload to a file, as a client or a node does."""
    path = compute.spill / name
    path.write_bytes(WHOLE)
    return str(path)


def test_parts_are_put_together_before_the_call_is_given():
    async def story(compute):
        client = await compute.visit()
        send_parts(client, "key")
        run = await compute.given(client.call(payload="key", sizes=[len(WHOLE)]))
        for node in compute.nodes.values():
            [order] = node.find(RunCall)
            assert (order.sizes, order.is_ours) == ([len(WHOLE)], False)
            with open(order.file, "rb") as file:
                assert file.read() == WHOLE
        run.finish()
        await client.end_of(run.call)
        assert not os.path.exists(run.order.file)

    serve_calls(story)


def test_kept_ranks_get_large_payloads():
    async def story(compute):
        client, kept = await compute.visit(), make_profile(slot="kept")
        first = await compute.run(client, kept)
        send_parts(client, "key")
        run = await compute.given(client.call(kept, payload="key", sizes=[len(WHOLE)]))
        assert run.world == first.world
        with open(run.order.file, "rb") as file:
            assert file.read() == WHOLE
        run.finish()
        await client.end_of(run.call)

    serve_calls(story)


def test_parts_are_forwarded_to_other_machines():
    async def story(compute):
        client = await compute.visit()
        send_parts(client, "key")
        run = await compute.given(client.call(payload="key", sizes=[len(WHOLE)]))
        [near] = compute.nodes[0].find(RunCall)
        assert os.path.exists(near.file)
        [far] = compute.nodes[1].find(RunCall)
        assert far.file == ""
        assert join_parts(compute.nodes[1], far.payload) == WHOLE
        kinds = [message.kind for message, _ in compute.nodes[1].heard]
        assert PayloadPart.kind not in kinds[kinds.index(RunCall.kind) :]
        run.finish()
        await client.end_of(run.call)
        assert not os.path.exists(near.file)

    serve_calls(story, is_pod=True)


def test_file_of_a_client_is_used_only_on_one_machine():
    async def story(compute):
        client = await compute.visit()
        path = write_payload(compute, "argument")
        run = await compute.given(client.call(file=path))
        run.finish()
        await client.end_of(run.call)
        return run.order.file == path, os.path.exists(path)

    assert serve_calls(story) == (True, False)
    assert serve_calls(story, is_pod=True) == (False, True)


def test_payload_without_parts_is_refused():
    async def story(compute):
        client, wrong = await compute.visit(), await compute.visit()
        send_parts(client, "key")  # over another link
        wrong.call(payload="key")
        assert (await wrong.hear(Refused)).why == "no parts of payload 'key' have arrived"
        await until(lambda: wrong.has_hung_up, "it is disconnected")

    serve_calls(story)


def test_unclaimed_parts_are_deleted_with_their_client():
    async def story(compute):
        client = await compute.visit()
        send_parts(client, "key")
        await client.info()
        assert list(compute.spill.iterdir())
        await client.hang_up()
        await until(lambda: not list(compute.spill.iterdir()), "the parts are deleted")

    serve_calls(story)


def test_large_answer_is_sent_as_a_path_on_one_machine():
    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        call = client.call()
        run = await compute.given(call)
        path = write_payload(compute)
        run.answer(1, file=path, sizes=[len(WHOLE)])
        results = await client.hear(CallResult, id=call)
        assert (results.rank, results.state, results.file) == (1, "returned", path)
        run.answer(0, b"small")
        await client.end_of(call)
        other.say(AttendCall(id=call))  # a client that attends later may read it too
        assert (await other.hear(CallResult, rank=1)).file == path
        assert os.path.exists(path)

    serve_calls(story)


def test_large_answer_of_another_machine_is_forwarded_in_parts():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        send_parts(compute.nodes[1], "of rank 1")
        run.answer(1, payload="of rank 1", sizes=[len(WHOLE)])
        results = await client.hear(CallResult, id=call)
        assert (results.rank, results.sizes, results.file) == (1, [len(WHOLE)], "")
        assert join_parts(client, results.payload) == WHOLE
        run.answer(0)
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story, is_pod=True)


@pytest.mark.parametrize("is_pod", [False, True])
def test_a_path_that_another_machine_names_is_not_read_here(is_pod):
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call())
        path = write_payload(compute)
        run.answer(1, file=path, sizes=[len(WHOLE)])
        run.answer(0)
        await client.end_of(run.call)
        results = client.find(CallResult, id=run.call)
        return [result.file for result in results], join_parts(client, path)

    files, sent = serve_calls(story, is_pod=is_pod)
    assert sent == b""
    assert len(files) == (0 if is_pod else 1)


def test_small_items_stay_behind_the_parts_of_a_large_one():
    """A small item waits while an earlier large one is being sent to another machine."""

    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(stream=True))
        run = await compute.given(call)
        node = compute.nodes[0]
        node.say(CallItem(call=call, sizes=[len(WHOLE)], at_s=1.0, file=write_payload(compute)))
        node.say(CallItem(call=call, sizes=[5], at_s=2.0), b"small")
        run.finish()
        assert (await client.end_of(call)).state == "returned"
        assert client.kinds(call) == ["result", "result", "results"]
        first, second = client.find(CallResult)
        assert join_parts(client, first.payload) == WHOLE
        assert (first.at_s, second.at_s) == (1.0, 2.0)

    serve_calls(story, is_pod=True)

"""Code of calls that is sent to nodes: sent once, sent as a difference if possible, and never assumed."""

from __future__ import annotations

import io

import pytest
from scripted_peers import PROJECT, CodeFolder, make_profile, serve_calls

from windlass.bundle.archive import extract
from windlass.bundle.manifest import EMPTY
from windlass.wire.messages.calls import CallQueued, EndCall, RepeatCall
from windlass.wire.messages.computes import CodeSynced, ForkWorld, RunCall, SyncCode
from windlass.wire.status import FailureKind


@pytest.fixture
def code(tmp_path):
    (tmp_path / "code").mkdir()
    return CodeFolder(tmp_path / "code")


def make_code_profile(code, **changes):
    return make_profile(digest=code.manifest.digest, **changes)


async def send_code_and_run(compute, client, sync, code, **changes):
    """Send the changed code, and run a call that needs it."""
    client.say(*sync)
    return await compute.run(client, make_code_profile(code, **changes))


def test_missing_code_is_requested(code):
    code.write(work="x = 1\n")

    async def story(compute):
        client = await compute.visit()
        call = client.call(make_code_profile(code))
        again = await client.hear(RepeatCall, id=call)
        assert (again.has, again.make) == (EMPTY.digest, False)
        client.say(*code.render())
        client.call(make_code_profile(code), again=call)
        run = await compute.given(call)
        kinds = [message.kind for message, _ in compute.nodes[1].heard]
        assert kinds[:3] == ["sync", "fork_world", "call"]
        assert (compute.folder.code / PROJECT / "work.py").read_text() == "x = 1\n"
        assert compute.nodes[0].find(SyncCode) == []  # it has the lead's copy
        run.finish()
        assert (await client.info()).projects == {PROJECT: code.manifest.digest}

    serve_calls(story)


def test_known_code_is_not_sent_again_by_any_client(code):
    sync = code.write(work="x = 1\n")

    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        await send_code_and_run(compute, client, sync, code)
        for one in (client, other):
            run = await compute.run(one, make_code_profile(code))
            assert one.find(RepeatCall, id=run.call) == []
        assert len(compute.nodes[1].find(SyncCode)) == 1

    serve_calls(story)


def test_changes_are_forwarded_to_nodes_unchanged(code):
    first = code.write(work="x = 1\n", other="y = 1\n")
    second = code.write(work="x = 2\n")

    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        digest = second[0].base
        client.say(*first)
        await compute.run(client, make_profile(digest=digest))
        await send_code_and_run(compute, client, second, code)
        sent = [(message, body) for message, body in node.heard if isinstance(message, SyncCode)]
        assert sent == [first, second]
        assert (compute.folder.code / PROJECT / "work.py").read_text() == "x = 2\n"

    serve_calls(story)


def test_new_node_gets_all_code(code, tmp_path):
    first = code.write(work="x = 1\n", other="y = 1\n")

    async def story(compute):
        client = await compute.visit()
        await send_code_and_run(compute, client, first, code)
        second = code.write(work="x = 2\n")
        await compute.drop(1)
        node = await compute.join(1)
        await send_code_and_run(compute, client, second, code)
        [(order, body)] = [one for one in node.heard if isinstance(one[0], SyncCode)]
        assert (order.base, order.digest) == (EMPTY.digest, code.manifest.digest)
        extract(io.BytesIO(body), tmp_path / "unpacked", base=EMPTY, expected=order.digest)
        assert (tmp_path / "unpacked" / "other.py").read_text() == "y = 1\n"

    serve_calls(story)


def test_difference_from_an_unknown_base_is_requested_again(code):
    first = code.write(work="x = 1\n")

    async def story(compute):
        client, stale = await compute.visit(), await compute.visit()
        await send_code_and_run(compute, client, first, code)
        here = code.manifest.digest
        code.write(work="x = 2\n")
        unknown = code.manifest
        code.write(work="x = 3\n")
        stale.say(*code.render(unknown))
        call = stale.call(make_code_profile(code))
        assert (await stale.hear(RepeatCall, id=call)).has == here
        stale.say(*code.render())
        stale.call(make_code_profile(code), again=call)
        (await compute.given(call)).finish()
        assert (await stale.end_of(call)).state == "returned"

    serve_calls(story)


def test_waiting_calls_run_with_their_own_code(code):
    """The code of a call is installed when its turn comes, not while the previous call runs."""
    first = code.write(work="x = 1\n")

    async def story(compute):
        client = await compute.visit()
        file = compute.folder.code / PROJECT / "work.py"
        client.say(*first)
        one = client.call(make_code_profile(code))
        run = await compute.given(one)
        client.say(*code.write(work="x = 2\n"))
        two = client.call(make_code_profile(code))
        await client.hear(CallQueued, id=two)
        assert file.read_text() == "x = 1\n"
        run.finish()
        (await compute.given(two)).finish()
        assert file.read_text() == "x = 2\n"
        await client.end_of(two)

    serve_calls(story)


def test_damaged_code_fails_only_its_call(code):
    order, body = code.write(work="x = 1\n")

    async def story(compute):
        client = await compute.visit()
        client.say(order, body[: len(body) // 2])
        end = await client.end_of(client.call(make_code_profile(code)))
        assert end.verdict.kind is FailureKind.START_FAILED
        assert "the code could not be unpacked" in end.verdict.message
        assert compute.nodes[1].find(RunCall) == []
        await compute.run(client, make_profile())

    serve_calls(story)


def test_node_that_failed_to_unpack_gets_all_code_with_the_next_call(code):
    sync = code.write(work="x = 1\n")

    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        node.acts[SyncCode] = lambda order: CodeSynced(
            project=order.project, digest=order.digest, error="no space left"
        )
        await send_code_and_run(compute, client, sync, code)
        del node.acts[SyncCode]
        await compute.run(client, make_code_profile(code))
        assert len(node.find(SyncCode, digest=code.manifest.digest)) == 2

    serve_calls(story)


def test_callable_by_name_runs_the_current_code(code):
    sync = code.write(work="x = 1\n")

    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        await send_code_and_run(compute, client, sync, code)
        run = await compute.run(other, make_profile(digest="as is"))
        assert other.kinds(run.call) == ["results"]

    serve_calls(story)


def test_ranks_find_code_where_the_nodes_have_it(code):
    sync = code.write(work="x = 1\n")

    async def story(compute):
        client = await compute.visit()
        profile = make_code_profile(code)
        place = profile.project.replaced(cwd="sub", paths=[".", "lib"], root="/home/a/project")
        client.say(*sync)
        run = await compute.given(client.call(profile.replaced(project=place)))
        about = compute.nodes[1].find(ForkWorld)[0].about
        root = f"{compute.folder.code}/{PROJECT}"
        assert (about.root, about.cwd) == (root, f"{root}/sub")
        assert about.paths == [root, f"{root}/lib"]
        run.finish()

    serve_calls(story)


def test_code_of_a_cancelled_waiting_call_is_requested_again(code):
    """The code was never installed, so the next client has to send it."""

    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(make_profile()))
        client.say(*code.write(work="x = 1\n"))
        cancelled = client.call(make_code_profile(code))
        await client.hear(CallQueued, id=cancelled)
        client.say(EndCall(id=cancelled))
        await client.end_of(cancelled)
        assert (await client.info()).projects == {}
        call = client.call(make_code_profile(code))
        assert (await client.hear(RepeatCall, id=call)).has == EMPTY.digest
        client.say(*code.render())
        client.call(make_code_profile(code), again=call)
        await client.hear(CallQueued, id=call)
        run.finish()
        (await compute.given(call)).finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)


def test_damaged_code_is_requested_again(code):
    order, body = code.write(work="x = 1\n")

    async def story(compute):
        client = await compute.visit()
        client.say(order, body[: len(body) // 2])
        assert (await client.end_of(client.call(make_code_profile(code)))).state == "failed"
        call = client.call(make_code_profile(code))
        assert (await client.hear(RepeatCall, id=call)).has == EMPTY.digest
        client.say(order, body)
        client.call(make_code_profile(code), again=call)
        (await compute.given(call)).finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)


def test_code_of_a_waiting_call_is_not_requested_again(code):
    """The waiting call installs the code before the calls behind it start."""

    async def story(compute):
        client, other = await compute.visit(), await compute.visit()
        run = await compute.given(client.call(make_profile()))
        client.say(*code.write(work="x = 1\n"))
        first = client.call(make_code_profile(code))
        await client.hear(CallQueued, id=first)
        second = other.call(make_code_profile(code))
        await other.hear(CallQueued, id=second)
        for call in (first, second):
            run.finish()
            run = await compute.given(call)
        run.finish()
        assert (await other.end_of(second)).state == "returned"
        assert other.find(RepeatCall) == []

    serve_calls(story)

"""Calls that fail: one rank ends the others, the verdict names the first failure, and the next call runs."""

from __future__ import annotations

import time

import pytest
from scripted_peers import make_profile, serve_calls, shorten
from tls_peers import until

from windlass.wire.messages.calls import CallResults, CallWaiting
from windlass.wire.messages.computes import RunCall, WorldAbsent
from windlass.wire.messages.jobs import NodeLeaving
from windlass.wire.messages.worlds import EndWorld, WorldCleared
from windlass.wire.status import FailureKind

KEPT = make_profile(slot="kept")
# on newly forked, spare or kept ranks, in their first or a later call
RANKS = pytest.mark.parametrize(
    ("profile", "has_run"),
    [(make_profile(), False), (make_profile(), True), (KEPT, False), (KEPT, True)],
    ids=["fresh", "spare", "to keep", "kept"],
)


def name_rank(verdict):
    return verdict.kind, verdict.rank, verdict.node


# -- ranks ---------------------------------------------------------------------------------------


@RANKS
def test_a_rank_that_fails_ends_the_others(profile, has_run):
    async def story(compute):
        client = await compute.visit()
        if has_run:
            await compute.run(client, profile)
        call = client.call(profile)
        run = await compute.given(call)
        run.fail(1, "nothing to read")
        for node in compute.nodes.values():
            assert not (await node.hear(EndWorld, world=run.world)).now
        end = await client.end_of(call)
        assert end.state == "failed"
        assert name_rank(end.verdict) == (FailureKind.USER_ERROR, 1, 1)
        assert end.verdict.exception == "ValueError: nothing to read"
        assert end.verdict.others == {"running": 1}
        await compute.run(client, profile)

    serve_calls(story)


def test_exception_reaches_the_client_before_the_end():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        run.fail(1)
        await client.end_of(call)
        message, body = await client.hear_whole(CallResults, id=call)
        [answer] = message.answers
        assert (answer.rank, answer.state, answer.error.text) == (1, "raised", "ValueError: no")
        assert (body, message.ends) == (b"pickled", False)
        assert client.kinds(call) == ["results", "done"]

    serve_calls(story)


def test_verdict_names_the_first_failure_in_any_report_order():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        now_s = time.time()
        run.fail(1, "later", at_s=now_s)
        run.fail(0, "earlier", at_s=now_s - 1)
        end = await client.end_of(call)
        assert name_rank(end.verdict) == (FailureKind.USER_ERROR, 0, 0)
        assert end.verdict.others == {"raised": 1}

    serve_calls(story)


def test_rank_that_lost_its_peer_is_not_blamed():
    """It failed first by its clock and is reported first, but the lead waits for the cause."""

    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        run.fail(0, "Connection closed by peer", kind="RuntimeError", at_s=time.time() - 1)
        await client.info()
        run.lose(1)
        end = await client.end_of(call)
        assert name_rank(end.verdict) == (FailureKind.KILLED, 1, 1)

    serve_calls(story, grace_s=30.0)


def test_kept_ranks_that_all_failed_stay():
    async def story(compute):
        client = await compute.visit()
        call = client.call(KEPT)
        run = await compute.given(call)
        run.fail(0)
        run.fail(1)
        assert (await client.end_of(call)).state == "failed"
        again = await compute.run(client, KEPT)
        assert again.world == run.world
        assert compute.nodes[0].find(EndWorld) == []

    serve_calls(story)


@RANKS
@pytest.mark.parametrize(
    ("ending", "kind", "text"),
    [
        ({"state": "killed", "signal": 9}, FailureKind.KILLED, "killed by SIGKILL"),
        (
            {"state": "killed", "signal": 9, "out_of_memory": True},
            FailureKind.OUT_OF_MEMORY,
            "ran out of memory",
        ),
        (
            {"state": "exited", "signal": None, "exit_code": 3},
            FailureKind.USER_ERROR,
            "exited with code 3",
        ),
        ({"state": "exited", "signal": None}, FailureKind.START_FAILED, "never started"),
    ],
    ids=["killed", "memory", "exited", "unborn"],
)
def test_a_rank_that_dies_before_it_has_answered(profile, has_run, ending, kind, text):
    async def story(compute):
        client = await compute.visit()
        if has_run:
            await compute.run(client, profile)
        call = client.call(profile)
        run = await compute.given(call)
        run.answer(0)
        run.lose(1, **ending)
        end = await client.end_of(call)
        assert name_rank(end.verdict) == (kind, 1, 1)
        assert text in end.verdict.message
        assert end.verdict.others == {"returned": 1}
        await compute.run(client, profile)

    serve_calls(story)


def test_answer_after_the_end_is_ignored():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        run.fail(1)
        assert (await client.end_of(call)).state == "failed"
        run.answer(0, b"late")
        await compute.run(client)
        assert client.values(call) == {1: b"pickled"}

    serve_calls(story)


def test_node_whose_ranks_cannot_be_killed_is_given_up(monkeypatch):
    shorten(monkeypatch, clear_s=0.1)

    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        del node.acts[EndWorld]
        run = await compute.given(client.call())
        run.finish()
        assert not (await node.hear(EndWorld, world=run.world)).now
        assert (await node.hear(EndWorld, world=run.world)).now
        await until(lambda: compute.status.nodes[1].state == "lost", "node 1 is lost")

    serve_calls(story)


# -- nodes ---------------------------------------------------------------------------------------


@RANKS
def test_a_node_that_is_lost_during_a_call_fails_it(profile, has_run):
    async def story(compute):
        client = await compute.visit()
        if has_run:
            await compute.run(client, profile)
        call = client.call(profile)
        await compute.given(call)
        await compute.drop(1)
        end = await client.end_of(call)
        assert name_rank(end.verdict) == (FailureKind.LOST_NODE, 1, 1)
        assert "its connection broke" in end.verdict.message
        again = client.call(profile)
        assert (await client.hear(CallWaiting, id=again)).what == "waiting for node 1"
        await compute.join(1)
        (await compute.given(again)).finish()
        assert (await client.end_of(again)).state == "returned"

    serve_calls(story)


def test_node_lost_after_its_answers_does_not_fail_the_call():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        run.answer(1, b"safe")
        await compute.drop(1)
        run.answer(0)
        assert (await client.end_of(call)).state == "returned"
        assert client.values(call) == {0: b"", 1: b"safe"}

    serve_calls(story)


def test_leaving_node_fails_the_call_with_its_reason():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        await compute.given(call)
        compute.nodes[1].say(NodeLeaving(why="its machine is needed"))
        end = await client.end_of(call)
        assert name_rank(end.verdict) == (FailureKind.LOST_NODE, 1, 1)
        assert "its machine is needed" in end.verdict.message

    serve_calls(story)


def test_no_call_starts_while_a_node_that_leaves_may_still_have_ranks():
    async def story(compute):
        client, leaving = await compute.visit(), compute.nodes[1]
        first = client.call()
        await compute.given(first)
        leaving.say(NodeLeaving(why="it received SIGTERM"))
        assert (await client.end_of(first)).state == "failed"
        second = client.call(make_profile(nodes=1))
        what = (await client.hear(CallWaiting, id=second)).what
        assert what == "waiting for the ranks of unreachable node 1 to end"
        assert compute.nodes[0].find(RunCall, id=second) == []
        await leaving.hang_up()
        (await compute.given(second)).finish()
        assert (await client.end_of(second)).state == "returned"

    serve_calls(story)


def test_a_node_without_the_ranks_of_a_call_fails_it():
    async def story(compute):
        client = await compute.visit()
        await compute.run(client, KEPT)
        call = client.call(KEPT)
        run = await compute.given(call)
        compute.nodes[1].say(WorldAbsent(world=run.world))
        end = await client.end_of(call)
        assert name_rank(end.verdict) == (FailureKind.LOST_NODE, 1, 1)
        assert "its ranks were gone before the call arrived" in end.verdict.message

    serve_calls(story)


def test_call_fails_if_a_node_does_not_join_in_time():
    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(launch_timeout_s=0.2))
        assert (await client.hear(CallWaiting, id=call)).what == "waiting for node 1"
        end = await client.end_of(call)
        assert end.verdict.kind is FailureKind.START_FAILED
        assert "node 1 did not join within 0.2 s (launch_timeout)" in end.verdict.message
        await compute.run(client, make_profile(nodes=1))  # calls without node 1 still run

    serve_calls(story, here=(0,))


def test_calls_wait_for_node_0():
    """The lead starts before node 0 joins it."""

    async def story(compute):
        client = await compute.visit()
        call = client.call()
        assert (await client.hear(CallWaiting, id=call)).what == "waiting for node 0, node 1"
        for index in (1, 0):
            await compute.join(index)
        (await compute.given(call)).finish()
        assert client.kinds(call)[0] == "waiting"
        await client.end_of(call)
        assert client.kinds(call) == ["waiting", "started", "results"]

    serve_calls(story, here=())


def test_spare_ranks_of_a_replaced_node_are_not_used():
    async def story(compute):
        client = await compute.visit()
        await compute.run(client)
        spare = compute.nodes[0].worlds()[-1]
        await compute.drop(1)
        await compute.join(1)
        run = await compute.given(client.call())
        assert run.world != spare
        assert run.world in compute.nodes[1].worlds()
        run.finish()

    serve_calls(story)


def test_reports_of_an_old_world_are_ignored():
    async def story(compute):
        client = await compute.visit()
        old = await compute.run(client)
        call = client.call()
        run = await compute.given(call)
        old.lose(1, given=old.call, answered=old.call)
        compute.nodes[1].say(WorldCleared(world=old.world))
        compute.nodes[1].say(WorldAbsent(world=old.world))
        run.finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)

"""Worlds of a compute, forked for a call, for the next call, or kept, and their ranks."""

from __future__ import annotations

import pytest
from scripted_peers import make_profile, serve_calls

from windlass.wire.messages.calls import ComputeInfo, RepeatCall, ScaleNodes
from windlass.wire.messages.computes import ForkWorld, MakeObject, RunCall
from windlass.wire.messages.jobs import EndAgent
from windlass.wire.messages.worlds import EndWorld
from windlass.wire.status import FailureKind

KEPT = make_profile(slot="kept")
OBJECT = make_profile(slot="kept", instance="object-1")


# -- spare worlds --------------------------------------------------------------------------------


def test_ranks_of_the_next_call_are_forked_while_a_call_runs():
    async def story(compute):
        client = await compute.visit()
        call = client.call()
        run = await compute.given(call)
        node = compute.nodes[0]
        await node.hear(ForkWorld, world=run.world)
        spare = await node.hear(ForkWorld)
        run.finish()
        await compute.rest(client)
        assert node.find(EndWorld, world=spare.world) == []
        again = await compute.given(client.call())
        assert again.world == spare.world
        again.finish()

    serve_calls(story)


def test_spare_ranks_run_a_call_with_the_same_fork_settings():
    async def story(compute):
        client = await compute.visit()
        await compute.run(client, make_profile())
        spare = compute.nodes[0].worlds()[-1]
        other = make_profile(name="other", method="step", timeout_s=1000.0, version="2")
        run = await compute.given(client.call(other))
        assert run.world == spare
        assert (run.order.name, run.order.method) == ("other", "step")
        run.finish()

    serve_calls(story)


@pytest.mark.parametrize(
    "changes",
    [
        {"nodes": 1},
        {"procs": 2},
        {"ranks": [1]},
        {"env": {"A": "1"}},
        {"preload": ["json"]},
        {"start": "spawn"},
        {"framework": "command"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_spare_ranks_that_do_not_fit_are_killed(changes):
    async def story(compute):
        client = await compute.visit()
        await compute.run(client, make_profile())
        spare = compute.nodes[0].worlds()[-1]
        run = await compute.given(client.call(make_profile(**changes)))
        assert run.world > spare
        for node in compute.nodes.values():
            assert node.find(RunCall, world=spare) == []
            assert [order.now for order in node.find(EndWorld, world=spare)] == [True]
        run.finish()

    serve_calls(story)


# -- which ranks ---------------------------------------------------------------------------------


def test_ranks_are_counted_over_the_nodes():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(make_profile(nodes=2, procs=3)))
        assert compute.layout(run.world) == {0: [0, 1, 2], 1: [3, 4, 5]}
        assert compute.nodes[2].worlds() == []
        run.finish()

    serve_calls(story, nodes=3)


def test_chosen_ranks_form_their_own_world():
    async def story(compute):
        client = await compute.visit()
        run = await compute.given(client.call(make_profile(nodes=3, procs=2, ranks=[3, 4, 5])))
        assert compute.layout(run.world) == {1: [0], 2: [1, 2]}
        assert compute.nodes[0].find(ForkWorld) == []
        run.finish()
        assert (await client.end_of(run.call)).state == "returned"
        assert client.values(run.call) == {0: b"", 1: b"", 2: b""}

    serve_calls(story, nodes=3)


def test_unknown_ranks_fail_the_call_and_the_next_one_runs():
    async def story(compute):
        client = await compute.visit()
        end = await client.end_of(client.call(make_profile(ranks=[7])))
        assert end.state == "failed"
        assert end.verdict.kind is FailureKind.START_FAILED
        assert "ranks=[7]: the compute has only 2 ranks" in end.verdict.message
        await compute.run(client)

    serve_calls(story)


def test_ranks_are_forked_with_the_settings_of_the_client():
    async def story(compute):
        client = await compute.visit()
        profile = make_profile(env={"A": "1"}, preload=["json"], start="spawn", slot="kept")
        run = await compute.given(client.call(profile))
        for node in compute.nodes.values():
            [order] = node.find(ForkWorld)
            assert (order.env, order.preload) == ({"A": "1"}, ["json"])
            assert (order.about.start, order.about.keep) == ("spawn", True)
        run.finish()

    serve_calls(story)


# -- kept worlds ---------------------------------------------------------------------------------


def test_kept_ranks_of_another_shape_exit_before_new_ones_are_forked():
    async def story(compute):
        client = await compute.visit()
        kept = await compute.run(client, KEPT)
        wider = await compute.given(client.call(KEPT.replaced(env={"A": "1"})))
        assert wider.world != kept.world
        for node in compute.nodes.values():
            kinds = [m.kind for m, _ in node.heard if m.world in (kept.world, wider.world)]
            assert kinds == ["fork_world", "call", "stop", "fork_world", "call"]
        wider.finish()

    serve_calls(story)


def test_worlds_in_different_slots_coexist():
    async def story(compute):
        client = await compute.visit()
        worlds = {}
        for slot in ("one", "other", "one", "other"):
            run = await compute.run(client, KEPT.replaced(slot=slot))
            assert worlds.setdefault(slot, run.world) == run.world
        assert len(set(worlds.values())) == 2

    serve_calls(story)


def test_kept_ranks_reload_when_the_code_has_changed():
    async def story(compute):
        client = await compute.visit()
        reloads = []
        for version in ("1", "1", "2", "2"):
            run = await compute.run(client, KEPT.replaced(version=version))
            reloads.append(run.order.reload)
        assert reloads == [False, False, True, False]

    serve_calls(story)


# -- objects -------------------------------------------------------------------------------------


def make_and_call(client, call, body=b"what makes it"):
    client.say(MakeObject(sizes=[len(body)]), body)
    client.call(OBJECT, again=call)


def test_an_object_is_made_once_and_then_called():
    async def story(compute):
        client = await compute.visit()
        call = client.call(OBJECT)
        assert (await client.hear(RepeatCall, id=call)).make
        make_and_call(client, call)
        run = await compute.given(call)
        for node in compute.nodes.values():
            kinds = [(message.kind, body) for message, body in node.heard]
            made = ("make", b"what makes it")
            assert kinds == [("fork_world", b""), made, ("call", b"")]
            assert node.find(MakeObject)[0].world == run.world
        run.finish()
        await client.end_of(call)
        again = await compute.run(client, OBJECT)
        assert again.world == run.world
        assert len(compute.nodes[0].find(MakeObject)) == 1

    serve_calls(story)


def test_recreated_object_replaces_the_previous_one():
    async def story(compute):
        client = await compute.visit()
        worlds = []
        for number in range(2):
            call = f"made-{number}"
            make_and_call(client, call)
            run = await compute.given(call)
            run.finish()
            await client.end_of(call)
            await compute.rest(client)
            worlds.append(run.world)
        assert worlds[0] < worlds[1]
        assert [order.world for order in compute.nodes[0].find(EndWorld)] == [worlds[0]]

    serve_calls(story)


def test_object_lost_with_its_ranks_is_requested_again():
    async def story(compute):
        client = await compute.visit()
        make_and_call(client, "first")
        run = await compute.given("first")
        run.finish()
        await client.end_of("first")
        run.lose(1, given="first", answered="first")
        await compute.nodes[1].hear(MakeObject)
        call = client.call(OBJECT)
        assert (await client.hear(RepeatCall, id=call)).make
        make_and_call(client, call)
        again = await compute.given(call)
        assert again.world != run.world
        again.finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)


def test_object_lost_while_a_call_waits_is_requested_at_its_turn():
    async def story(compute):
        client = await compute.visit()
        make_and_call(client, "first")
        kept = await compute.given("first")
        kept.finish()
        await client.end_of("first")
        other = await compute.given(client.call(make_profile()))
        call = client.call(OBJECT)
        await client.info()
        kept.lose(1, given="first", answered="first")
        other.finish()
        assert (await client.hear(RepeatCall, id=call)).make
        make_and_call(client, call)
        (await compute.given(call)).finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)


# -- more and fewer nodes ------------------------------------------------------------------------


def test_a_compute_grows_and_the_next_call_uses_all_of_it():
    async def story(compute):
        client = await compute.visit()
        client.say(ScaleNodes(nodes=3))
        assert (await client.hear(ComputeInfo)).before == 2
        call = client.call(make_profile(nodes=3))
        await compute.join(2)
        run = await compute.given(call)
        assert compute.layout(run.world) == {0: [0], 1: [1], 2: [2]}
        run.finish()
        info = await client.info()
        assert (info.nodes, info.here) == (3, [0, 1, 2])
        assert compute.status.num_nodes == 3

    serve_calls(story)


def test_shrinking_ends_the_nodes_beyond_the_new_size():
    async def story(compute):
        client = await compute.visit()
        client.say(ScaleNodes(nodes=1))
        await compute.nodes[2].hear(EndAgent)
        await compute.nodes[1].hear(EndAgent)
        assert compute.nodes[0].find(EndAgent) == []
        info = await client.info()
        assert (info.nodes, info.here) == (1, [0])
        run = await compute.run(client, make_profile(nodes=1))
        assert compute.layout(run.world) == {0: [0]}

    serve_calls(story, nodes=3)


def test_call_for_more_nodes_than_known_grows_the_compute():
    """An earlier lead of the compute has added the other nodes."""

    async def story(compute):
        client = await compute.visit()
        call = client.call(make_profile(nodes=3))
        while (await client.info()).nodes < 3:
            pass
        await compute.join(2)
        (await compute.given(call)).finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story)

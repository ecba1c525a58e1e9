"""Setup of a compute's nodes: once, before the first call that needs it, and what a failure means."""

from __future__ import annotations

from scripted_peers import make_profile, serve_calls

from windlass.spec.work import PipStep
from windlass.wire.messages.calls import (
    CallNotice,
    CallWaiting,
    ComputeInfo,
    ConfigureCompute,
    EndCall,
)
from windlass.wire.messages.computes import NodeSetUp, RunCall, SettingUp, SetUpNode
from windlass.wire.status import FailureKind

KEPT = make_profile(slot="kept")
STEP = PipStep(packages=("x",))


def test_plan_steps_run_once_before_the_first_call():
    async def story(compute):
        client = await compute.visit()
        for _ in range(2):
            await compute.run(client)
        for node in compute.nodes.values():
            [order] = node.find(SetUpNode)
            assert order.steps == [STEP]
            assert next(m.kind for m, _ in node.heard) == "setup"

    serve_calls(story, steps=(STEP,))


def test_call_waits_for_the_setup_and_its_client_gets_the_output():
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        del node.acts[SetUpNode]
        call = client.call()
        order = await node.hear(SetUpNode)
        assert (await client.hear(CallWaiting, id=call)).what == "setting up nodes"
        node.say(SettingUp(line="installing x"))
        assert (await client.hear(CallNotice, id=call)).line == "node 1: installing x"
        assert compute.nodes[0].find(RunCall) == []
        node.say(NodeSetUp(digest=order.digest))
        (await compute.given(call)).finish()
        assert (await client.end_of(call)).state == "returned"

    serve_calls(story, steps=(STEP,))


def test_failed_step_fails_the_call_and_is_retried():
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        obey = node.acts[SetUpNode]
        node.acts[SetUpNode] = lambda order: NodeSetUp(
            digest=order.digest, error="pip failed", hint="look at pip's words"
        )
        end = await client.end_of(client.call())
        assert (end.state, end.verdict.kind) == ("failed", FailureKind.STEP_FAILED)
        assert (end.verdict.node, end.verdict.message) == (1, "node 1: pip failed")
        assert end.verdict.next == "look at pip's words"
        node.acts[SetUpNode] = obey
        await compute.run(client)
        assert len(node.find(SetUpNode)) == 2
        assert len(compute.nodes[0].find(SetUpNode)) == 1

    serve_calls(story, steps=(STEP,))


def test_a_call_is_cancelled_while_nodes_are_set_up():
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        del node.acts[SetUpNode]
        call = client.call()
        await node.hear(SetUpNode)
        client.say(EndCall(id=call))
        assert (await client.end_of(call)).state == "cancelled"

    serve_calls(story, steps=(STEP,))


def test_configuration_reaches_nodes_with_the_next_call(monkeypatch):
    monkeypatch.setenv("KNOWN", "as here")

    async def story(compute):
        client, node = await compute.visit(), compute.nodes[1]
        kept = await compute.run(client, KEPT)
        assert node.find(SetUpNode) == []
        hidden = {"TOKEN": "s3cret", "KNOWN": "as here"}
        client.say(ConfigureCompute(env={"A": "1", "B": None}, hidden=hidden))
        info = await client.hear(ComputeInfo)
        assert (info.env, info.steps) == ({"A": "1", "B": None}, [])
        assert info.setup
        assert not any("s3cret" in str(message) for message, _ in client.heard)
        run = await compute.run(client, KEPT)
        [order] = node.find(SetUpNode)
        assert (order.env, order.hidden) == ({"A": "1", "B": None}, {"TOKEN": "s3cret"})
        assert run.world != kept.world
        client.say(ConfigureCompute(env={"A": "1", "B": None}))  # unchanged
        again = await compute.run(client, KEPT)
        assert again.world == run.world

    serve_calls(story)


def test_new_node_is_set_up():
    async def story(compute):
        client = await compute.visit()
        await compute.run(client)
        await compute.drop(1)
        node = await compute.join(1)
        await compute.run(client)
        assert len(node.find(SetUpNode)) == 1
        assert len(compute.nodes[0].find(SetUpNode)) == 1

    serve_calls(story, steps=(STEP,))

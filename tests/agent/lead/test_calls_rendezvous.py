"""Rendezvous of the ranks of calls: in a store that all worlds share, or at ports reserved for them."""

from __future__ import annotations

import pytest
from scripted_peers import STORE_PORT, make_profile, serve_calls, shorten

from windlass.wire.messages.worlds import CloseStore, OpenStore, StoreGone, StoreReady

KEPT = make_profile(slot="kept")
TORCH = make_profile(framework="pytorch", store=True, preload=["torch"])


def test_worlds_share_a_store_with_a_part_for_each_call():
    async def story(compute):
        client = await compute.visit()
        first, second = await compute.run(client, TORCH), await compute.run(client, TORCH)
        [order] = compute.nodes[0].find(OpenStore)
        assert (order.framework, order.preload) == ("pytorch", ["torch"])
        assert compute.nodes[1].find(OpenStore) == []
        for run in (first, second):
            assert run.order.meeting["MASTER_ADDR"] == "127.0.0.1"
            assert run.order.meeting["MASTER_PORT"] == str(STORE_PORT)
        assert first.order.part != second.order.part

    serve_calls(story)


def test_kept_ranks_get_their_rendezvous_once():
    async def story(compute):
        client = await compute.visit()
        kept = TORCH.replaced(slot="kept")
        first, second = await compute.run(client, kept), await compute.run(client, kept)
        assert first.order.meeting["MASTER_PORT"] == str(STORE_PORT)
        assert second.order.meeting == {}

    serve_calls(story)


def test_unused_store_is_renewed_after_many_calls(monkeypatch):
    shorten(monkeypatch, calls_per_store=2)

    async def story(compute):
        client, node = await compute.visit(), compute.nodes[0]
        first = (await compute.run(client, TORCH)).order
        second = (await compute.run(client, TORCH)).order
        assert [m.kind for m, _ in node.heard].count("close_store") == 1
        opened, renewed = node.find(OpenStore)
        assert [order.number for order in node.find(CloseStore)] == [opened.number]
        assert renewed.number > opened.number
        third = (await compute.run(client, TORCH)).order
        assert [order.part for order in (first, second, third)] == [1, 2, 1]

    serve_calls(story)


def test_store_with_a_dead_process_is_reopened():
    async def story(compute):
        client, node = await compute.visit(), compute.nodes[0]
        await compute.run(client, TORCH)
        [opened] = node.find(OpenStore)
        node.say(StoreGone(number=opened.number))
        await compute.run(client, TORCH.replaced(env={"A": "1"}))
        assert [o.number > opened.number for o in node.find(OpenStore)] == [False, True]

    serve_calls(story)


def test_rank_0_opens_a_store_at_a_reserved_port_if_the_agent_cannot():
    async def story(compute):
        node = compute.nodes[0]
        node.acts[OpenStore] = lambda order: StoreReady(number=order.number, port=0)
        client = await compute.visit()
        run = await compute.run(client, TORCH)
        assert 0 < int(run.order.meeting["MASTER_PORT"]) < 65536
        assert run.order.meeting["TORCHELASTIC_USE_AGENT_STORE"] == "False"

    serve_calls(story)


@pytest.mark.parametrize("how", ["it is renewed", "it is gone"])
def test_reserved_port_is_released_with_its_store(monkeypatch, how):
    """`serve_calls` detects sockets that are left open."""
    shorten(monkeypatch, calls_per_store=1 if how == "it is renewed" else 1000)

    async def story(compute):
        node = compute.nodes[0]
        node.acts[OpenStore] = lambda order: StoreReady(number=order.number, port=0)
        client = await compute.visit()
        await compute.run(client, TORCH)
        if how == "it is gone":
            node.say(StoreGone(number=node.find(OpenStore)[0].number))
        await compute.run(client, TORCH.replaced(env={"A": "1"}))
        assert len(node.find(OpenStore)) >= 2

    serve_calls(story)


def test_worlds_without_a_store_have_their_own_ports():
    """The port of a kept world is not used for another one."""

    async def story(compute):
        client = await compute.visit()
        kept = await compute.run(client, KEPT)
        other = await compute.run(client, KEPT.replaced(slot="other"))
        ports = [run.order.meeting["MASTER_PORT"] for run in (kept, other)]
        assert len(set(ports)) == 2

    serve_calls(story)

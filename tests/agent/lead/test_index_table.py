"""Indexes assigned by the lead, over real TLS: no two agents ever have the same one."""

from __future__ import annotations

import asyncio

import pytest
from pod_connections import make_job, run_lead_server
from tls_peers import JOB, run_with_lead, until, write_certificates

from windlass.agent import lead_requests
from windlass.agent.lead.lead_server import EndedJob
from windlass.agent.lead_requests import GivenIndex, ask_index
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.silence_limits import SilenceLimits
from windlass.wire import tls
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.link import GiveIndex

SHORT = SilenceLimits(silence_s=0.4, fence_s=0.6, cut_grace_s=0.3, slack_s=0.1)


@pytest.fixture(autouse=True)
def _ask_often(monkeypatch):
    monkeypatch.setattr(lead_requests, "_AGAIN_S", 0.02)


def place_of(files, port):
    return TlsPlace(host="127.0.0.1", port=port, context=tls.client_context(files))


async def ask_once(scene, agent, lead=""):
    """Ask for an index once, and return the reply."""
    place = place_of(scene.files, scene.port)
    answer = await lead_requests._ask(place, JOB, agent, lead, timeout_s=20.0)
    assert isinstance(answer, GiveIndex)
    return answer.index


async def ask(scene, agent):
    """Ask for an index until the lead assigns one."""
    place = place_of(scene.files, scene.port)
    given = await ask_index(place, JOB, agent, timeout_s=20.0)
    return given.index


async def join(scene, agent, index, lead=""):
    """Join with an assigned index, as a follower does."""
    peer = await scene.visit(index, agent=agent, last_lead=lead)
    about = {"pid": index, "python": "3.12.1", "memory": None, "has": {}, "incarnation": agent}
    peer.say("join", **about)
    await until(lambda: index in scene.lead.nodes, f"node {index} has joined")
    return peer


async def cut(scene, peer, index):
    peer.link.cut()
    await until(lambda: index not in scene.lead.nodes, f"node {index} is lost")


def run(tmp_path, visit, *, nodes=3, **about):
    run_lead_server(tmp_path, visit, make_job(nodes=nodes), **{"limits": SHORT, **about})


def test_concurrent_agents_get_one_index_each(tmp_path):
    async def visit(scene):
        given = await asyncio.gather(*(ask_once(scene, f"pod-{n}") for n in range(12)))
        assert sorted(index for index in given if index is not None) == [1, 2, 3, 4, 5, 6, 7]
        assert given.count(None) == 5

    run(tmp_path, visit, nodes=8)


def test_agent_that_asks_again_gets_its_index(tmp_path):
    async def visit(scene):
        assert [await ask_once(scene, agent) for agent in "abab"] == [1, 2, 1, 2]

    run(tmp_path, visit)


def test_returning_agent_keeps_its_index(tmp_path):
    async def visit(scene):
        assert [await ask_once(scene, agent) for agent in "ab"] == [1, 2]
        peer = await join(scene, "a", 1)
        await join(scene, "b", 2)
        await cut(scene, peer, 1)
        assert await ask_once(scene, "c") is None
        again = await join(scene, "a", 1)
        assert again.find("index")["index"] == 1
        assert await ask_once(scene, "a") == 1

    run(tmp_path, visit)


def test_index_of_an_isolated_agent_is_reused_after_its_ranks_are_dead(tmp_path):
    async def visit(scene):
        clock = asyncio.get_running_loop().time
        peer = await join(scene, "a", await ask(scene, "a"))
        cut_at_s = clock()
        await cut(scene, peer, 1)
        assert await ask_once(scene, "b") is None
        assert await ask(scene, "b") == 1
        assert clock() - cut_at_s >= SHORT.node_gone_s
        await join(scene, "b", 1)

    run(tmp_path, visit, nodes=2)


def test_index_of_a_dead_agent_is_free_immediately(tmp_path):
    """Its machine closed the connection, so the agent and its ranks are dead."""
    limits = SilenceLimits()

    async def visit(scene):
        peer = await join(scene, "a", await ask(scene, "a"))
        await peer.close()
        await until(lambda: 1 not in scene.lead.nodes, "node 1 is lost")
        assert await ask_once(scene, "b") == 1

    run(tmp_path, visit, nodes=2, limits=limits)


def test_leaving_agent_keeps_its_index_until_it_disconnects(tmp_path):
    async def visit(scene):
        peer = await join(scene, "a", await ask(scene, "a"))
        peer.say("leaving", why="it received SIGTERM")
        await until(lambda: 1 not in scene.lead.nodes, "node 1 is leaving")
        assert await ask_once(scene, "b") is None
        await peer.close()
        assert await ask(scene, "b") == 1

    run(tmp_path, visit, nodes=2)


def test_a_spare_waits_until_a_node_is_lost(tmp_path):
    async def visit(scene):
        peer = await join(scene, "a", await ask(scene, "a"))
        spare = asyncio.ensure_future(ask(scene, "b"))
        assert await ask_once(scene, "b") is None
        assert not spare.done()
        await peer.close()
        assert await asyncio.wait_for(spare, 20) == 1

    run(tmp_path, visit, nodes=2)


def test_late_agent_learns_that_its_index_is_taken(tmp_path):
    async def visit(scene):
        peer = await join(scene, "a", await ask(scene, "a"))
        await cut(scene, peer, 1)
        holder = await join(scene, "b", await ask(scene, "b"))
        for is_here in (True, False):
            late = await scene.visit(1, agent="a", last_lead="")
            await until(lambda late=late: late.has_hung_up, "it is disconnected")
            assert late.find("index")["index"] is None
            assert (1 in scene.lead.nodes) == is_here
            if is_here:
                await cut(scene, holder, 1)

    run(tmp_path, visit, nodes=2)


def test_unused_reservation_is_given_to_the_next_agent(tmp_path):
    async def visit(scene):
        assert await ask_once(scene, "a") == 1
        assert await ask_once(scene, "b") is None
        assert await ask(scene, "b") == 1

    run(tmp_path, visit, nodes=2)


def test_new_lead_waits_for_old_agents_before_it_assigns_indexes(
    tmp_path,
):
    async def visit(scene):
        clock = asyncio.get_running_loop().time
        start_s = clock()
        assert await ask_once(scene, "spare", lead="another") is None
        assert await ask_once(scene, "new") is None
        await join(scene, "b", 2, lead="another")  # its index under the old lead
        assert await ask(scene, "new") == 1
        assert clock() - start_s >= SHORT.world_gone_s

    run(tmp_path, visit)


def test_agent_that_asks_after_the_end_gets_no_index(tmp_path):
    files = write_certificates(tmp_path / "tls")

    async def visit(listener):
        place = place_of(files, listener.port)
        assert await ask_index(place, JOB, "a", timeout_s=20.0) is None

    run_with_lead(files, visit, EndedJob(JobFolder(tmp_path)).take)


def test_lead_is_identified_by_its_name(tmp_path):
    async def visit(scene):
        place = place_of(scene.files, scene.port)
        own = scene.lead_server._context.incarnation
        given = await ask_index(place, JOB, "a", timeout_s=20.0)
        assert given == GivenIndex(index=1, lead=own)
        # the same lead, so there are no old agents to wait for
        assert await ask_once(scene, "b", lead=own) == 2

    run(tmp_path, visit)

"""Worlds and their nodes: which nodes must end ranks, how much time they have, and which are clear."""

from __future__ import annotations

import asyncio
import signal

import pytest
from kube.plans import make_pod_plan

from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.world import World, WorldTable
from windlass.agent.silence_limits import DEFAULT_LIMITS, Disconnect
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import JoinLead, ReleaseRanks
from windlass.wire.messages.worlds import EndWorld, WorldCleared

PLAN = make_pod_plan("job-1", nodes=3, procs=2)


class Scene:
    """Table of three nodes with a world on two of them, and a record of the orders they got."""

    def __init__(self, folder):
        self.status_writer = StatusWriter(PLAN, JobFolder(folder))
        self.nodes = NodeTable(PLAN, self.status_writer, wake=lambda: None)
        self.worlds = WorldTable(self.nodes)
        self.orders = []
        for index in range(3):
            hear = lambda order, _body, i=index: self.orders.append((i, order))  # noqa: E731
            self.nodes.join(index, hear, JoinLead(pid=1, python="3.12.1"))
        self.world = World(5, PLAN.on_nodes([0, 2]))
        self.worlds.add(self.world)


@pytest.fixture
def play(tmp_path):
    def run(story):
        async def main():
            scene = Scene(tmp_path)
            story(scene)
            scene.status_writer.write()

        asyncio.run(main())

    return run


def stop(**fields):
    return EndWorld(**{"world": 5, "now": False, "signal": signal.SIGTERM, **fields})


def test_node_0_of_a_world_gets_its_order_last(play):
    def story(scene):
        scene.worlds.send(scene.world, ReleaseRanks())
        assert scene.orders == [(2, ReleaseRanks()), (0, ReleaseRanks())]

    play(story)


def test_world_is_cleared_when_no_node_has_ranks(play):
    def story(scene):
        scene.worlds.end(scene.world, now=False, signum=signal.SIGINT)
        order = stop(signal=signal.SIGINT, within_s=None)
        assert scene.orders == [(2, order), (0, order)]
        scene.worlds.take_cleared(0, WorldCleared(world=5))
        scene.worlds.take_cleared(2, WorldCleared(world=4))
        assert not scene.world.is_cleared
        scene.worlds.take_cleared(2, WorldCleared(world=5))
        assert scene.world.is_cleared

    play(story)


def test_absent_nodes_are_not_waited_for(play):
    def story(scene):
        scene.worlds.lose(2, "its link broke", Disconnect.CLOSED)
        assert not scene.world.is_alive
        scene.worlds.end(scene.world, now=True)
        assert scene.orders == [(0, stop(now=True, within_s=None))]
        scene.worlds.take_cleared(0, WorldCleared(world=5))
        assert scene.world.is_cleared

    play(story)


def test_ranks_get_less_time_once_a_node_is_cut_off(play):
    def story(scene):
        scene.worlds.end(scene.world, now=False, signum=signal.SIGINT)
        scene.orders.clear()
        scene.worlds.lose(2, "it has said nothing", Disconnect.CUT)
        less = stop(signal=signal.SIGINT, within_s=DEFAULT_LIMITS.cut_grace_s)
        assert scene.orders == [(0, less)]
        assert scene.nodes.one_world.unreachable() == [2]

    play(story)


def test_ranks_get_less_time_once_a_leaving_node_is_cut_off(play):
    def story(scene):
        scene.worlds.lose(2, "it received SIGTERM", Disconnect.LEAVING)
        scene.worlds.end(scene.world, now=False)
        assert scene.orders == [(0, stop(within_s=None))]
        assert scene.worlds.lose(2, "its link broke", Disconnect.CUT) is None
        assert scene.orders[-1] == (0, stop(within_s=DEFAULT_LIMITS.cut_grace_s))

    play(story)


@pytest.mark.parametrize("index", [1, 2])
def test_node_without_ranks_is_not_waited_for(play, index):
    def story(scene):
        scene.worlds.take_cleared(2, WorldCleared(world=5))
        scene.worlds.lose(index, "it has said nothing", Disconnect.CUT)
        assert scene.nodes.one_world.unreachable() == []
        assert not scene.world.is_partitioned

    play(story)


def test_world_that_lost_a_rank_gets_no_more_calls(play):
    def story(scene):
        scene.worlds.lose_rank(4)
        assert scene.world.is_alive
        scene.worlds.lose_rank(5)
        assert not scene.world.is_alive
        scene.worlds.forget(scene.world)
        assert scene.worlds.all() == []
        assert scene.worlds.get(5) is None

    play(story)

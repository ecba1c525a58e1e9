"""Table of nodes: which are present, whether they are enough, and which files they have."""

from __future__ import annotations

import asyncio

import pytest
from kube.plans import make_pod_plan

from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.silence_limits import Disconnect
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import JoinLead
from windlass.wire.states import NodeState
from windlass.wire.status import Phase


@pytest.fixture
def play(tmp_path):
    """Return a function that runs a story with the table of a job of three nodes."""

    def run(story, *indices, **spec):
        async def main():
            plan = make_pod_plan("job-1", **{"nodes": 3, **spec})
            status_writer = StatusWriter(plan, JobFolder(tmp_path))
            nodes = NodeTable(plan, status_writer, wake=lambda: None)
            for index in indices:
                join(nodes, index)
            story(nodes)
            status_writer.write()

        asyncio.run(main())

    return run


def join(nodes, index, **about):
    nodes.join(index, lambda *_: None, JoinLead(pid=1, python="3.12.1", **about))


def lose(nodes, index):
    return nodes.lose(index, "", Disconnect.CLOSED, may_run=False)


def test_nodes_join_leave_and_return(play):
    def story(nodes):
        assert (nodes.joined(), nodes.missing(), nodes.is_complete) == ([0, 1, 2], [], True)
        assert lose(nodes, 1) is not None
        assert lose(nodes, 1) is None
        assert (nodes.missing(), nodes.lost, nodes.is_complete) == ([1], {1}, False)
        join(nodes, 1)
        assert (nodes.lost, nodes.is_complete, 1 in nodes) == (set(), True, True)

    play(story, 0, 1, 2)


def test_nodes_that_leave_after_the_end_are_not_lost(play):
    """A client that attaches later sees the status from before the pods left."""

    def story(nodes):
        writer = nodes._status_writer
        lose(nodes, 2)
        writer.set_phase(Phase.SUCCEEDED, "Done", "all ranks returned")
        lose(nodes, 1)
        states = [node.state is NodeState.LOST for node in writer.status.nodes]
        assert states == [False, False, True]

    play(story, 0, 1, 2)


def test_status_has_the_pod_of_each_node_and_the_last_of_a_lost_one(play):
    def story(nodes):
        join(nodes, 1, pod="a-x2x3x")
        lose(nodes, 1)
        assert [node.pod for node in nodes._status_writer.status.nodes] == ["", "a-x2x3x", ""]
        join(nodes, 1, pod="a-y4y5y")
        assert nodes._status_writer.status.nodes[1].pod == "a-y4y5y"

    play(story, 0, 2)


def test_a_node_without_the_code_does_not_count(play):
    def story(nodes):
        join(nodes, 2, is_prepared=False)
        assert (nodes.joined(), nodes.prepared()) == ([0, 1, 2], [0, 1])
        assert (nodes.is_complete, nodes.is_enough) == (False, True)
        nodes.prepare(2)
        assert nodes.is_complete

    play(story, 0, 1, min_nodes=2)


@pytest.mark.parametrize(
    ("present", "min_nodes", "is_enough"),
    [([0], 1, True), ([0], 2, False), ([0, 2], 2, True), ([1, 2], 2, False), ([0, 1], 0, False)],
)
def test_enough_means_min_nodes_including_node_0(play, present, min_nodes, is_enough):
    def story(nodes):
        assert nodes.is_enough is is_enough

    play(story, *present, min_nodes=min_nodes)


def test_imports_are_done_when_all_nodes_have_joined_and_imported(play):
    def story(nodes):
        for index in (0, 1):
            nodes[index].has_imported = True
        assert not nodes.have_all_imported
        join(nodes, 2)
        nodes[2].has_imported = True
        assert nodes.have_all_imported

    play(story, 0, 1)


def test_a_node_is_named_with_its_machine(play):
    def story(nodes):
        join(nodes, 1, host="rack-7")
        assert nodes.describe(0) == "job-1-node-0"
        assert nodes.describe(1) == "job-1-node-1 (on rack-7)"
        assert nodes.describe(2) == "job-1-node-2"
        assert nodes.describe(7) == "node 7"

    play(story, 0)


def test_order_to_an_absent_node_is_not_sent(play):
    received = []

    def story(nodes):
        nodes.join(
            1, lambda order, body: received.append((order, body)), JoinLead(pid=1, python="3")
        )
        assert not nodes.order(0, "order")
        assert nodes.order(1, "order", b"body")
        assert received == [("order", b"body")]

    play(story)


def test_lead_waits_for_a_given_up_node_until_it_disconnects(play):
    def story(nodes):
        nodes.lose(1, "it did not end its ranks", Disconnect.CUT, may_run=True)
        assert nodes.one_world.unreachable() == [1]
        assert lose(nodes, 1) is None
        assert nodes.one_world.unreachable() == []

    play(story, 0, 1)


def test_ranks_of_a_returning_agent_are_dead_but_not_of_a_replaced_one(play):
    def story(nodes):
        join(nodes, 1, incarnation="a")
        nodes.lose(1, "it has said nothing", Disconnect.CUT, may_run=True)
        join(nodes, 1, incarnation="b")
        assert nodes.one_world.unreachable() == [1]
        join(nodes, 1, incarnation="a")
        assert nodes.one_world.unreachable() == []

    play(story, 0)

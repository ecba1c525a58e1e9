"""Frameworks with their own processes on all nodes: when they start, and what losing one means."""

from __future__ import annotations

import pytest
from scripted_peers import make_profile, serve_calls
from socketless_lead import lead_through, reasons
from tls_peers import until

from windlass.spec.node_resources import NodeSize, NodeSizes
from windlass.wire.messages.calls import ConfigureCompute
from windlass.wire.messages.computes import RunCall, SetUpNode
from windlass.wire.messages.worlds import CloseStore, OpenStore, StoreGone, StoreReady
from windlass.wire.results import ErrorInfo
from windlass.wire.status import FailureKind, Phase

SIZES = NodeSizes(first=NodeSize(cpus=2.0), others=NodeSize(gpus=1))
RAY = {"framework": "ray", "procs": 1, "only_first": True, "sizes": SIZES, "nodes": 3}
AT = {"port": 6379, "address": "127.0.0.2"}


def obey_order(nodes, index, order):
    """Act as a node that follows its orders."""
    if order["type"] == "open_store":
        nodes.say(index, "store", number=order["number"], **AT)
    elif order["type"] == "stop":
        nodes.stopped(index, order["world"])


def test_node_0_opens_the_others_join_and_then_the_one_rank_starts(tmp_path):
    def acts(nodes, index, order):
        obey_order(nodes, index, order)
        if order["type"] == "start":
            nodes.succeed(index)

    status, nodes = lead_through(tmp_path, acts, **RAY)
    assert (status.phase, [rank.state for rank in status.ranks]) == (Phase.SUCCEEDED, ["returned"])
    assert [(index, order["type"]) for index, order in nodes.orders] == [
        (0, "open_store"),
        (1, "open_store"),
        (2, "open_store"),
        (0, "start"),
    ]
    first, *others, start = (order for _, order in nodes.orders)
    assert (first["cluster"].joins, first["cluster"].size) == (False, SIZES.first)
    for order in others:
        cluster = order["cluster"]
        assert (cluster.joins, cluster.size, cluster.num_nodes) == (True, SIZES.others, 3)
        assert (order["address"], order["port"]) == (AT["address"], AT["port"])
        assert cluster.secret == first["cluster"].secret
    assert len(start["secret"]) == 64
    assert start["secret"] == first["cluster"].secret
    assert (start["address"], start["port"], start["has_store"]) == ("127.0.0.2", 6379, True)


def test_process_that_cannot_start_ends_the_job_before_any_rank_starts(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "open_store" and index == 2:
            nodes.say(2, "store", number=0, port=0, error="Ray is not installed on node 2 -> pip")
            return
        obey_order(nodes, index, order)

    status, nodes = lead_through(tmp_path, acts, **RAY)
    assert status.verdict.kind is FailureKind.START_FAILED
    assert (status.verdict.node, status.verdict.message[:20]) == (2, "Ray is not installed")
    assert nodes.starts() == []
    assert "stop" in nodes.kinds(1)


def test_lost_worker_is_reported_and_restarted(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start":
            nodes.say(1, "store_gone", number=0)
            return
        obey_order(nodes, index, order)
        if nodes.kinds(1).count("open_store") == 2 and index == 1:
            nodes.succeed(0)

    status, nodes = lead_through(tmp_path, acts, **RAY)
    assert status.phase is Phase.SUCCEEDED
    assert nodes.kinds(1) == ["open_store", "open_store"]
    assert ("warning", "ClusterNodeLost") in reasons(status)


def test_worker_that_cannot_be_restarted_is_reported(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start":
            nodes.say(1, "store_gone", number=0)
        elif order["type"] == "open_store" and nodes.kinds(1).count("open_store") == 2:
            nodes.say(1, "store", number=0, port=0, error="no room for its objects")
            nodes.succeed(0)
        else:
            obey_order(nodes, index, order)

    status, _ = lead_through(tmp_path, acts, **RAY)
    assert status.phase is Phase.SUCCEEDED
    messages = [one.message for one in status.conditions if one.reason == "ClusterNodeLost"]
    assert "job-1-node-1 is missing: no room for its objects" in messages


def test_node_that_joins_a_stopping_attempt_must_close_its_cluster(tmp_path):
    """It was ordered to join a cluster that has ended, and the next one needs the same ports."""

    def acts(nodes, index, order):
        if order["type"] == "stop" and index == 0 and order["world"] == 0:
            nodes.join(1)
        if order["type"] == "start" and order["attempt"] == 0:
            nodes.lead.lose(1, "its pod is gone")
            nodes.end(0, "raised", 0, error=ErrorInfo(type="E", message="lost"))
            return
        obey_order(nodes, index, order)
        if order["type"] == "start":
            nodes.succeed(0)

    status, nodes = lead_through(tmp_path, acts, restarts=1, **RAY)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    orders = [(o["type"], o["number"]) for i, o in nodes.orders if i == 1 and "number" in o]
    assert orders == [
        ("open_store", 0),
        ("open_store", 0),
        ("close_store", 0),
        ("open_store", 1),
    ]


def test_replacement_of_a_lost_node_joins_the_cluster(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "start":
            nodes.lead.lose(1, "its pod is gone")
            nodes.join(1)
            return
        obey_order(nodes, index, order)
        if nodes.kinds(1).count("open_store") == 2 and index == 1:
            nodes.succeed(0)

    status, nodes = lead_through(tmp_path, acts, replaces=True, **RAY)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 0)
    assert nodes.kinds(1) == ["open_store", "open_store"]


def test_a_lost_head_ends_the_attempt_and_the_next_has_a_cluster_of_its_own(tmp_path):
    def acts(nodes, index, order):
        obey_order(nodes, index, order)
        if order["type"] == "start" and order["attempt"] == 0:
            nodes.say(0, "store_gone", number=0)
        elif order["type"] == "start":
            nodes.succeed(0)

    status, nodes = lead_through(tmp_path, acts, replaces=True, **RAY)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    [lost] = status.history
    assert lost.kind is FailureKind.LOST_NODE
    assert lost.message == "Ray's head on job-1-node-0 was lost, and the cluster with it"
    secrets = {o["cluster"].secret for _, o in nodes.orders if o["type"] == "open_store"}
    assert len(secrets) == 2


# -- pods, where the head's port is known ----------------------------------------------------------

POD = "10.0.0.7"


def test_in_pods_workers_start_beside_the_head_and_the_rank_waits(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "open_store" and index == 0:
            return
        obey_order(nodes, index, order)
        joined = [i for i, o in nodes.orders if o["type"] == "open_store" and i]
        if order["type"] == "open_store" and joined == [1, 2]:
            assert nodes.starts() == [], "workers are ready, and the head is not"
            nodes.say(0, "store", number=0, port=6379, address=POD)
        if order["type"] == "start":
            nodes.succeed(index)

    status, nodes = lead_through(tmp_path, acts, address=POD, **RAY)
    assert status.phase is Phase.SUCCEEDED
    orders = [o for i, o in nodes.orders if i and o["type"] == "open_store"]
    assert [(order["address"], order["port"]) for order in orders] == [(POD, 6379)] * 2


def test_in_pods_workers_are_closed_if_the_head_cannot_start(tmp_path):
    def acts(nodes, index, order):
        if order["type"] == "open_store" and index == 0:
            nodes.say(0, "store", number=0, port=0, error="Ray is not installed on node 0 -> pip")
        elif order["type"] == "stop":
            nodes.stopped(index, order["world"])

    status, nodes = lead_through(tmp_path, acts, address=POD, **RAY)
    assert (status.verdict.kind, status.verdict.node) == (FailureKind.START_FAILED, 0)
    assert [nodes.kinds(index).count("close_store") for index in (1, 2)] == [1, 1]


def test_in_pods_workers_wait_for_the_next_head_at_the_same_port(
    tmp_path,
):
    def acts(nodes, index, order):
        if order["type"] == "open_store" and order["number"] == 1 and index == 0:
            assert nodes.kinds(1).count("open_store") == 1
            nodes.say(0, "store", number=1, port=6379, address=POD)
            return
        obey_order(nodes, index, order)
        if order["type"] == "start" and order["attempt"] == 0:
            nodes.say(0, "store_gone", number=0)
        elif order["type"] == "start":
            nodes.succeed(0)

    status, nodes = lead_through(tmp_path, acts, replaces=True, address=POD, **RAY)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    assert nodes.kinds(1).count("open_store") == 2


# -- a framework that needs all of its nodes -------------------------------------------------------

MONARCH = {**RAY, "framework": "monarch"}


def lose_worker(nodes):
    nodes.say(1, "store_gone", number=0)


def lose_node(nodes):
    nodes.lead.lose(1, "its pod is gone")
    nodes.join(1)


@pytest.mark.parametrize(
    ("lose", "kind", "budget"),
    [
        (lose_worker, FailureKind.KILLED, {"restarts": 1}),
        (lose_node, FailureKind.LOST_NODE, {"replaces": True}),
    ],
)
def test_lost_worker_ends_the_attempt_and_the_next_has_a_new_mesh(tmp_path, lose, kind, budget):
    def acts(nodes, index, order):
        if order["type"] == "open_store":
            address = f"ipc:///{order['number']}/{index}"
            nodes.say(index, "store", number=order["number"], port=0, address=address)
        elif order["type"] == "stop":
            nodes.stopped(index, order["world"])
        elif order["type"] == "start" and order["attempt"] == 0:
            lose(nodes)
        elif order["type"] == "start":
            nodes.succeed(0)

    status, nodes = lead_through(tmp_path, acts, **budget, **MONARCH)
    assert (status.phase, status.attempt) == (Phase.SUCCEEDED, 1)
    [lost] = status.history
    assert (lost.kind, lost.node) == (kind, 1)
    assert lost.message == "Monarch's worker on job-1-node-1 was lost, and the cluster with it"
    members = [order["members"] for _, order in nodes.orders if order["type"] == "start"]
    assert members == [tuple(f"ipc:///{number}/{i}" for i in range(3)) for number in (0, 1)]


# -- on a compute ------------------------------------------------------------------------------

CALL = make_profile(framework="ray", store=True, sizes=SIZES)


def accept_stores(compute):
    for node in compute.nodes.values():
        node.acts[OpenStore] = lambda order: StoreReady(number=order.number, **AT)


def test_calls_share_one_cluster_until_it_is_lost_or_another_is_asked_for():
    async def story(compute):
        accept_stores(compute)
        client, nodes = await compute.visit(), compute.nodes
        first = await compute.run(client, CALL)
        await compute.run(client, CALL)
        assert [len(nodes[i].find(OpenStore)) for i in (0, 1)] == [1, 1]
        assert first.order.meeting["RAY_ADDRESS"] == "127.0.0.2:6379"
        assert nodes[1].find(RunCall) == []
        number = nodes[0].find(OpenStore)[0].number
        nodes[0].say(StoreGone(number=number))
        await until(lambda: nodes[1].find(CloseStore) != [], "workers are closed")
        await compute.run(client, CALL)
        assert [len(nodes[i].find(OpenStore)) for i in (0, 1)] == [2, 2]
        larger = CALL.replaced(sizes=NodeSizes(others=NodeSize(gpus=2)))
        await compute.run(client, larger)
        assert [order.cluster.size.gpus for order in nodes[1].find(OpenStore)] == [1, 1, 2]

    serve_calls(story)


def test_a_cluster_ends_on_all_nodes_before_some_are_set_up_again():
    async def story(compute):
        accept_stores(compute)
        client, nodes = await compute.visit(), compute.nodes
        await compute.run(client, CALL)
        number = nodes[0].find(OpenStore)[0].number
        nodes[1].say(StoreGone(number=number))
        client.say(ConfigureCompute(env={"COLOR": "red"}))
        await compute.run(client, CALL)
        for node in nodes.values():
            kinds = [type(message) for message, _ in node.heard]
            assert kinds.index(CloseStore) < kinds.index(SetUpNode)
            assert node.find(CloseStore)[0].number == number
            assert len({order.number for order in node.find(OpenStore)}) == 2

    serve_calls(story)


def test_call_with_a_lost_head_names_it():
    async def story(compute):
        accept_stores(compute)
        client, node = await compute.visit(), compute.nodes[0]
        call = client.call(CALL)
        await compute.given(call)
        node.say(StoreGone(number=node.find(OpenStore)[0].number))
        verdict = (await client.end_of(call)).verdict
        assert verdict.kind is FailureKind.LOST_NODE
        assert "Ray's head on" in verdict.message

    serve_calls(story)


def test_call_fails_if_a_node_cannot_start_its_process():
    async def story(compute):
        accept_stores(compute)
        compute.nodes[1].acts[OpenStore] = lambda order: StoreReady(
            number=order.number, port=0, error="node 1 needs 1 GPU but has 0"
        )
        client = await compute.visit()
        verdict = (await client.end_of(client.call(CALL))).verdict
        assert (verdict.kind, verdict.node) == (FailureKind.START_FAILED, 1)
        assert "node 1 needs 1 GPU" in verdict.message
        accept_stores(compute)
        await compute.run(client, CALL)

    serve_calls(story)


def test_call_restarts_with_the_replacement_of_a_node_lost_at_the_start():
    async def story(compute):
        compute.nodes[0].acts[OpenStore] = lambda order: StoreReady(
            number=order.number, port=0, address="ipc:///0"
        )
        compute.nodes[1].acts.pop(OpenStore, None)  # node 1 does not reply yet
        client = await compute.visit()
        call = client.call(make_profile(framework="monarch", store=True, sizes=SIZES))
        await until(lambda: compute.nodes[1].find(OpenStore) != [], "node 1 has its order")
        await compute.drop(1)
        await compute.join(1)
        accept_stores(compute)
        await compute.given(call)
        assert len(compute.nodes[0].find(OpenStore)) == 2

    serve_calls(story)

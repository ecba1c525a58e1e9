"""Stores of a node under a scripted fork server: opening, closing and losing them."""

from __future__ import annotations

import signal
import socket
import subprocess

import pytest

from windlass.agent.fork_server_client import ForkServer, read_request
from windlass.agent.node.node import NodeStores
from windlass.spec.node_resources import NodeSize
from windlass.wire.messages.forkserver import ClusterNode, StoreOpened, StoreStarted
from windlass.wire.messages.worlds import OpenStore, StoreGone, StoreReady


class Ground:
    """Stores, their messages, and the fork server's end of their requests."""

    def __init__(self, server, ours, *, are_shared):
        self.server = server
        self.messages = []
        forks = ForkServer()
        forks.adopt(ours, 0, [], {})
        self.stores = NodeStores(forks, self.messages.append, are_shared=are_shared)

    def open(self, number, **more):
        order = OpenStore(number=number, framework="pytorch", address="127.0.0.1", port=0, **more)
        self.stores.open(order)

    def read_new_requests(self):
        """Return the numbers of the stores requested since the last call."""
        numbers = []
        while True:
            try:
                numbers.append(read_request(self.server)[0].attempt)
            except BlockingIOError:
                return numbers

    def start(self, number, *, port=0):
        process = subprocess.Popen(["sleep", "617"])
        self.stores.started(StoreStarted(attempt=number, pid=process.pid))
        if port:
            self.stores.opened(StoreOpened(attempt=number, port=port))
        return process


@pytest.fixture(params=[True, False], ids=["shared", "an attempt's"])
def ground(request):
    ours, server = socket.socketpair()
    server.setblocking(False)
    with ours, server:
        yield Ground(server, ours, are_shared=request.param)


def test_port_is_reported(ground):
    ground.open(3)
    assert ground.read_new_requests() == [3]
    store = ground.start(3, port=4711)
    assert ground.messages == [StoreReady(number=3, port=4711)]
    ground.stores.close(3)
    assert store.wait(30) == -signal.SIGKILL
    ground.stores.exited(store.pid)
    assert len(ground.messages) == 1  # a requested close is not a loss


def test_next_store_waits_for_the_port_of_a_closing_one(ground):
    ground.open(3)
    old = ground.start(3, port=4711)
    ground.stores.close(3)
    ground.open(4)
    ground.open(5)
    ground.stores.close(5)
    assert ground.read_new_requests() == [3]
    old.wait(30)
    ground.stores.exited(old.pid)
    assert ground.read_new_requests() == [4]


def test_store_closed_before_it_is_forked_is_killed(ground):
    ground.open(3)
    ground.stores.close(3)
    assert ground.start(3).wait(30) == -signal.SIGKILL
    assert ground.messages == []


@pytest.mark.parametrize("how", ["it dies", "its fork server dies"])
def test_loss_of_a_shared_store_is_reported(ground, how):
    ground.open(3)
    store = ground.start(3, port=4711)
    store.kill()
    store.wait(30)
    if how == "it dies":
        ground.stores.exited(store.pid)
    else:
        ground.stores.forget()
    is_shared = ground.stores._are_shared
    assert ground.messages[1:] == ([StoreGone(number=3)] if is_shared else [])


def test_store_that_never_opened_is_reported(ground):
    ground.open(3)
    ground.stores.forget()
    assert ground.messages == [StoreReady(number=3, port=0)]
    assert ground.read_new_requests() == [3]


CLUSTER = ClusterNode(size=NodeSize(gpus=1), num_nodes=2, secret="s3cret")


def test_cluster_node_reports_its_address_and_its_loss(ground):
    ground.open(3, cluster=CLUSTER)
    request = read_request(ground.server)[0]
    messages = request.cluster.replaced(forget=())
    assert messages == CLUSTER.replaced(forget=())
    node = ground.start(3)
    ground.stores.opened(StoreOpened(attempt=3, port=6379, address="10.0.0.7", note="new"))
    ready = StoreReady(number=3, port=6379, address="10.0.0.7", error="", note="new")
    assert ground.messages == [ready]
    node.kill()
    node.wait(30)
    ground.stores.exited(node.pid)
    assert ground.messages[1:] == [StoreGone(number=3)]


def test_cluster_node_that_dies_during_the_start_is_reported(ground):
    ground.open(3, cluster=CLUSTER)
    ground.stores.forget()
    [ready] = ground.messages
    assert (ready.port, ready.error) == (0, "its process was killed while it started")


def test_node_without_a_lead_closes_its_clusters(ground):
    ground.open(3, cluster=CLUSTER)
    node = ground.start(3, port=6379)
    ground.stores.close_clusters()
    assert node.wait(30) == -signal.SIGKILL

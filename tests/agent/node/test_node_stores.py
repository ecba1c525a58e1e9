"""The stores of a node, under a fork server that the test plays: opened, closed, lost."""

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
    """Stores, what they tell, and the fork server's end of their requests."""

    def __init__(self, server, ours, *, are_shared):
        self.server = server
        self.told = []
        forks = ForkServer()
        forks.adopt(ours, 0, [], {})
        self.stores = NodeStores(forks, self.told.append, are_shared=are_shared)

    def open(self, number, **more):
        order = OpenStore(number=number, framework="pytorch", address="127.0.0.1", port=0, **more)
        self.stores.open(order)

    def asked(self):
        """The numbers of the stores that were asked for since the last time."""
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


def test_the_port_is_told(ground):
    ground.open(3)
    assert ground.asked() == [3]
    store = ground.start(3, port=4711)
    assert ground.told == [StoreReady(number=3, port=4711)]
    ground.stores.close(3)
    assert store.wait(30) == -signal.SIGKILL
    ground.stores.exited(store.pid)
    assert len(ground.told) == 1  # what was asked for is no loss


def test_the_next_one_waits_for_the_port_of_one_that_closes(ground):
    ground.open(3)
    old = ground.start(3, port=4711)
    ground.stores.close(3)
    ground.open(4)
    ground.open(5)
    ground.stores.close(5)
    assert ground.asked() == [3]
    old.wait(30)
    ground.stores.exited(old.pid)
    assert ground.asked() == [4]


def test_one_that_is_closed_before_it_is_forked_ends_when_it_is(ground):
    ground.open(3)
    ground.stores.close(3)
    assert ground.start(3).wait(30) == -signal.SIGKILL
    assert ground.told == []


@pytest.mark.parametrize("how", ["it dies", "its fork server dies"])
def test_a_loss_is_told_where_others_would_meet_there(ground, how):
    ground.open(3)
    store = ground.start(3, port=4711)
    store.kill()
    store.wait(30)
    if how == "it dies":
        ground.stores.exited(store.pid)
    else:
        ground.stores.forget()
    is_shared = ground.stores._are_shared
    assert ground.told[1:] == ([StoreGone(number=3)] if is_shared else [])


def test_nobody_waits_for_one_that_never_opened(ground):
    ground.open(3)
    ground.stores.forget()
    assert ground.told == [StoreReady(number=3, port=0)]
    assert ground.asked() == [3]


CLUSTER = ClusterNode(size=NodeSize(gpus=1), num_nodes=2, secret="s3cret")


def test_a_clusters_node_says_where_it_is_and_its_loss_is_always_told(ground):
    ground.open(3, cluster=CLUSTER)
    request = read_request(ground.server)[0]
    told = request.cluster.replaced(forget=())
    assert told == CLUSTER.replaced(forget=())
    node = ground.start(3)
    ground.stores.opened(StoreOpened(attempt=3, port=6379, address="10.0.0.7", note="new"))
    ready = StoreReady(number=3, port=6379, address="10.0.0.7", error="", note="new")
    assert ground.told == [ready]
    node.kill()
    node.wait(30)
    ground.stores.exited(node.pid)
    assert ground.told[1:] == [StoreGone(number=3)]


def test_a_clusters_node_that_dies_before_it_is_up_says_so(ground):
    ground.open(3, cluster=CLUSTER)
    ground.stores.forget()
    [ready] = ground.told
    assert (ready.port, ready.error) == (0, "its process was killed while it started")


def test_a_node_without_a_lead_keeps_no_cluster(ground):
    ground.open(3, cluster=CLUSTER)
    node = ground.start(3, port=6379)
    ground.stores.close_clusters()
    assert node.wait(30) == -signal.SIGKILL

"""Clusters of a framework's own processes: the first process is on node 0, and the other nodes join it.

If a node loses its process, the lead orders it to join again. An agent that replaces a lost node also gets
the order. A node whose process cannot start does not. Its error is kept for the calls and attempts that wait
for the cluster. Other frameworks have stores, which are in `agent.lead.stores`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from windlass import names
from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.stores import LOOPBACK, Store, Stores
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import RankRendezvous
from windlass.wire.message import Handlers
from windlass.wire.messages.forkserver import ClusterNode
from windlass.wire.messages.worlds import CloseStore, OpenStore, StoreGone, StoreReady
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.spec.node_resources import NodeSizes


@dataclass(slots=True)
class _Member:
    node: JoinedNode  # the agent that received the order
    is_ready: bool = False
    address: str = ""
    error: str = ""


class _OtherNodes:
    """Nodes of a cluster beyond node 0, and their state. `make_order` returns the order to join."""

    def __init__(
        self,
        nodes: NodeTable,
        status_writer: StatusWriter,
        make_order: Callable[[int], OpenStore],
        indexes: Iterable[int],
    ) -> None:
        self._nodes = nodes
        self._status_writer = status_writer
        self._make_order = make_order
        self._wanted = set(indexes)
        self._members: dict[int, _Member] = {}
        self._lost: set[int] = set()  # nodes that had joined and lost their process

    def want(self, indexes: Iterable[int]) -> None:
        """Add nodes, and retry nodes that could not start."""
        self._wanted.update(indexes)
        for index in [index for index, one in self._members.items() if one.error]:
            del self._members[index]
        self.check()

    def check(self) -> None:
        """Send the order to each wanted node that is prepared and has not yet received it."""
        for index in self._wanted:
            node = self._nodes.get(index)
            member = self._members.get(index)
            is_ordered = member is not None and member.node is node
            if node is not None and node.is_prepared and not is_ordered:
                self._members[index] = _Member(node)
                node.send(self._make_order(index), b"")

    def is_settled(self, indexes: Iterable[int]) -> bool:
        """Return whether each node has joined or reported an error. Lost nodes are ignored."""
        return all(self._is_settled(index) for index in indexes)

    def _is_settled(self, index: int) -> bool:
        member, node = self._members.get(index), self._nodes.get(index)
        if node is None:
            return True
        return (
            member is not None and member.node is node and (member.is_ready or bool(member.error))
        )

    def find_error(self) -> tuple[int, str] | None:
        """Return the first node that could not start, and why."""
        errors = ((index, one.error) for index, one in sorted(self._members.items()) if one.error)
        return next(errors, None)

    def take_ready(self, index: int, message: StoreReady) -> None:
        """Record that a node has joined, or why it cannot."""
        member = self._members.get(index)
        if member is not None:
            member.is_ready, member.error = not message.error, message.error
            member.address = message.address
            if (
                message.error and index in self._lost
            ):  # no call or attempt waits for this node any more
                text = f"{self._nodes.describe(index)} is missing: {message.error}"
                self._status_writer.add_condition("warning", names.REASON_CLUSTER_NODE_LOST, text)

    @property
    def addresses(self) -> list[str]:
        """Addresses of the nodes that have joined, in the order of nodes."""
        return [one.address for _, one in sorted(self._members.items()) if one.is_ready]

    def lose(self, index: int, what: str) -> None:
        """Restart the process of a node that had joined."""
        member = self._members.get(index)
        if member is not None and member.is_ready:
            del self._members[index]
            self._lost.add(index)
            message = f"{what} on {self._nodes.describe(index)} was lost and is restarted"
            self._status_writer.add_condition("warning", names.REASON_CLUSTER_NODE_LOST, message)
            self.check()

    def close(self, number: int) -> None:
        """Close the cluster on these nodes permanently."""
        for index in self._wanted:
            self._nodes.order(index, CloseStore(number=number))
        self._wanted.clear()


@dataclass(slots=True)
class Cluster:
    """A framework's own processes on the nodes of one attempt, or of all worlds of a compute."""

    number: int
    sizes: NodeSizes
    secret: str  # lets nodes and ranks connect
    wanted: set[int] = field(default_factory=set)  # its nodes beyond node 0
    port: int | None = None  # None if not known yet
    address: str = ""  # address of its first process, which may differ from the lead's
    others: _OtherNodes | None = None
    error: str = ""  # why node 0 cannot open it
    is_given_up: bool = False  # it lost a node that it cannot run without
    num_calls: int = 0

    @property
    def is_settled(self) -> bool:
        """True if the cluster is open on all nodes or has failed."""
        is_over = bool(self.error) or self.is_given_up
        is_joined = self.others is not None and self.others.is_settled(self.wanted)
        return is_over or (self.port is not None and is_joined)

    def find_error(self) -> tuple[int, str] | None:
        """Return the node on which the cluster could not start and the error, or None."""
        if self.error:
            return 0, self.error
        return None if self.others is None else self.others.find_error()

    def describe(self, address: str) -> RankRendezvous:
        """Return the connection details for ranks. `address` applies unless the cluster has its own."""
        members = () if self.others is None else (self.address, *self.others.addresses)
        return RankRendezvous(
            address=self.address or address,
            port=self.port or 0,
            has_store=True,
            secret=self.secret,
            members=members,
        )

    def next_part(self) -> int:
        """Return a number that is unique to one call on this cluster."""
        self.num_calls += 1
        return self.num_calls


RendezvousPoint: TypeAlias = "Store | Cluster"  # where the ranks of a world find each other


class Clusters:
    """One cluster for each framework that has its own processes.

    `lose` is called for a lost cluster, with the kind of failure, the lost process and its node.
    """

    def __init__(
        self,
        nodes: NodeTable,
        status_writer: StatusWriter,
        *,
        address: str,
        own_address: str,
        lose: Callable[[Cluster, FailureKind, str, int], None],
    ) -> None:
        self._nodes = nodes
        self._status_writer = status_writer
        self._address = address  # node 0's address for ranks
        self._pod_address = "" if own_address == LOOPBACK else own_address
        self._pod_ports_taken: set[int] = set()  # ports that earlier clusters may still use
        self._lose = lose
        self._clusters: dict[str, Cluster] = {}  # keys are framework names

    def find(self, framework: str) -> Cluster | None:
        """Return the cluster of a framework, or None. It may not be open yet."""
        return self._clusters.get(framework)

    def open(
        self,
        framework: str,
        number: int,
        indexes: Iterable[int],
        sizes: NodeSizes,
        preload: Sequence[str] = (),
    ) -> Cluster:
        """Order the cluster of a framework on these nodes. An existing cluster gets the missing nodes."""
        others = {index for index in indexes if index}
        cluster = self._clusters.get(framework)
        if cluster is not None and cluster.sizes != sizes:
            self.close(framework)
            self._lose(cluster, FailureKind.LOST_NODE, "", 0)
            cluster = None
        if cluster is None:
            cluster = Cluster(number, sizes, secret=os.urandom(32).hex(), wanted=others)
            self._clusters[framework] = cluster
            self._nodes.order(0, self._make_order(framework, cluster, 0, preload=preload))
            self._order_ahead(framework, cluster)
        elif cluster.others is not None:
            cluster.wanted |= others
            cluster.others.want(cluster.wanted)
        return cluster

    def _order_ahead(self, framework: str, cluster: Cluster) -> None:
        """Start the other nodes at the same time as node 0 if its port is known in advance."""
        own = load_framework(framework).cluster
        port = 0 if own is None else own.pod_port
        if port and self._pod_address and port not in self._pod_ports_taken:
            self._pod_ports_taken.add(port)
            self._order_others(framework, cluster, self._pod_address, port)

    def _order_others(self, framework: str, cluster: Cluster, address: str, port: int) -> None:
        cluster.others = _OtherNodes(
            self._nodes,
            self._status_writer,
            lambda index: self._make_order(framework, cluster, index, address, port),
            cluster.wanted,
        )
        cluster.others.check()

    def _make_order(
        self,
        framework: str,
        cluster: Cluster,
        index: int,
        address: str = "",
        port: int = 0,
        *,
        preload: Sequence[str] = (),
    ) -> OpenStore:
        sizes = cluster.sizes
        node = ClusterNode(
            size=sizes.others if index else sizes.first,
            num_nodes=len(cluster.wanted) + 1,
            secret=cluster.secret,
            version=sizes.version,
            pretends_gpus=sizes.pretends_gpus,
            joins=bool(index),
            cwd=sizes.cwd,
            paths=sizes.paths,
        )
        return OpenStore(
            number=cluster.number,
            framework=framework,
            address=address or self._address,
            port=port,
            preload=preload,
            cluster=node,
        )

    def check(self) -> None:
        """Order new and returned nodes to join their clusters."""
        for cluster in self._clusters.values():
            if cluster.others is not None:
                cluster.others.check()

    def close(self, framework: str) -> None:
        """End a cluster's processes. The next call or attempt that needs a cluster opens a new one."""
        cluster = self._clusters.pop(framework)
        self._nodes.order(0, CloseStore(number=cluster.number))
        if cluster.others is not None:
            cluster.others.close(cluster.number)

    def drop_all(self, *, close: bool = False) -> None:
        """Forget all clusters. With `close`, also order their nodes to end the processes."""
        for framework in list(self._clusters) if close else ():
            self.close(framework)
        self._clusters.clear()

    def take_ready(self, index: int, message: StoreReady) -> None:
        """Record that a cluster is open on node 0, that a node has joined it, or an error."""
        for framework, cluster in self._clusters.items():
            if cluster.number == message.number:
                self._take_ready(framework, cluster, index, message)

    def _take_ready(
        self, framework: str, cluster: Cluster, index: int, message: StoreReady
    ) -> None:
        if message.note:
            self._status_writer.add_condition("note", names.REASON_CLUSTER_NOTE, message.note)
        own = load_framework(framework).cluster
        if message.dashboard and own is not None:
            usual = f"port {own.dashboard_port}"
            self._status_writer.add_condition(usual, names.REASON_PORT, message.dashboard)
        if index and cluster.others is not None:
            cluster.others.take_ready(index, message)
        elif index == 0 and cluster.port is None:
            cluster.port, cluster.address = message.port, message.address
            cluster.error = message.error
            if cluster.error and cluster.others is not None:
                cluster.others.close(cluster.number)
            elif not cluster.error and cluster.others is None:
                self._order_others(framework, cluster, message.address, message.port)

    def take_gone(self, index: int, message: StoreGone) -> None:
        """Restart a process that has ended, or give up its cluster."""
        for framework, cluster in list(self._clusters.items()):
            if cluster.number != message.number:
                continue
            own = load_framework(framework).cluster
            if own and cluster.others is not None and index and not own.needs_all:
                cluster.others.lose(index, own.other)
            else:
                self._give_up(framework, cluster, index)

    def lose_node(self, index: int) -> None:
        """Give up each cluster that cannot run without a lost node."""
        for framework, cluster in list(self._clusters.items()):
            own = load_framework(framework).cluster
            if own is not None and own.needs_all and index in (0, *cluster.wanted):
                self._give_up(framework, cluster, index)

    def _give_up(self, framework: str, cluster: Cluster, index: int) -> None:
        own = load_framework(framework).cluster
        if cluster.others is not None and not cluster.error:
            cluster.others.close(cluster.number)
        if index:
            self._nodes.order(0, CloseStore(number=cluster.number))
        del self._clusters[framework]
        cluster.is_given_up = True
        if own is not None and not cluster.error:
            # If the node is still connected, only the process was killed, and it can be restarted there.
            # Frameworks that do not need all nodes recover by themselves.
            is_here = own.needs_all and index in self._nodes
            kind = FailureKind.KILLED if is_here else FailureKind.LOST_NODE
            self._lose(cluster, kind, own.other if index else own.first, index)


def make_rendezvous_handlers(stores: Stores, clusters: Clusters) -> Handlers:
    """Return handlers for reports about stores and clusters, whose numbers come from one sequence."""

    def take_ready(index: int, message: StoreReady, _body: bytes) -> None:
        stores.take_ready(message)
        clusters.take_ready(index, message)

    def take_gone(index: int, message: StoreGone, _body: bytes) -> None:
        stores.take_gone(message)
        clusters.take_gone(index, message)

    return {StoreReady: take_ready, StoreGone: take_gone}

"""Where ranks find each other: stores that node 0 opens, and ports that are held for rank 0.

A store serves the ranks of one attempt, or all worlds of a compute. A framework's cluster is opened on
node 0 as a store is; how other nodes join it is `agent.lead.cluster_nodes`.

Where rank 0 opens the store itself, the lead binds a free port with SO_REUSEADDR and does not listen.
While it is held the kernel gives the port to no process that asks for any free one; but rank 0, whose
store asks for it by number and with SO_REUSEADDR too, gets it. So there is no moment at which a neighbour
can take it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.lead.cluster_nodes import ClusterNodes
from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import Meeting, Plan
from windlass.wire.message import Handlers
from windlass.wire.messages.forkserver import ClusterNode
from windlass.wire.messages.worlds import CloseStore, OpenStore, StoreGone, StoreReady
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.spec.node_resources import NodeSizes


_LOOPBACK = "127.0.0.1"
_MAX_CALLS = 500


@dataclass(slots=True)
class HeldPort:
    """A port that is ours until `release`."""

    number: int
    _socket: socket.socket

    def release(self) -> None:
        self._socket.close()


def hold_port(preferred: int = 0) -> HeldPort:
    """Hold `preferred` when it is free, else any free port."""
    try:
        return _hold(preferred)
    except OSError:
        if preferred == 0:
            raise
        return _hold(0)


def _hold(number: int) -> HeldPort:
    held = _bind(socket.AF_INET6, "::", number) or _bind(socket.AF_INET, "0.0.0.0", number)  # noqa: S104
    if held is None:
        raise OSError(f"port {number} is in use")
    return HeldPort(held.getsockname()[1], held)


def _bind(family: socket.AddressFamily, address: str, number: int) -> socket.socket | None:
    try:
        held = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((address, number))
    except OSError:
        held.close()
        return None
    return held


@dataclass(slots=True)
class MeetingPoint:
    """Where ranks find each other: a store on node 0, or a port that rank 0 of one world opens."""

    number: int
    port: int | None = None  # None: not told yet
    held: HeldPort | None = None  # where there is no store
    num_calls: int = 0
    is_shared: bool = False  # by all worlds of a compute
    address: str = ""  # where a cluster is, which knows better than its lead
    secret: str = ""  # that lets nodes and ranks into a cluster
    sizes: NodeSizes | None = None  # of a cluster
    others: ClusterNodes | None = None  # the nodes of a cluster beyond node 0
    error: str = ""  # why node 0 cannot open a cluster
    is_given_up: bool = False  # a cluster that lost a node without which it is none
    wanted: set[int] = field(default_factory=set)  # nodes that a cluster should have

    @property
    def has_store(self) -> bool:
        return self.held is None

    @property
    def is_settled(self) -> bool:
        """Whether it is open, on all nodes where it is a cluster, or cannot be."""
        if self.sizes is None:
            return self.port is not None
        is_over = bool(self.error) or self.is_given_up
        is_joined = self.others is not None and self.others.is_settled(self.wanted)
        return is_over or (self.port is not None and is_joined)

    def find_error(self) -> tuple[int, str]:
        """The node where a cluster could not start, and why; -1 where it could."""
        if self.error:
            return 0, self.error
        return (-1, "") if self.others is None else self.others.find_error()

    @property
    def members(self) -> tuple[str, ...]:
        """Where the nodes of a cluster are, node 0's first."""
        return () if self.others is None else (self.address, *self.others.addresses)

    def render(self, address: str, framework: str) -> dict[str, str]:
        """What ranks find in their environment."""
        meeting = Meeting(
            address=self.address or address,
            port=self.port or 0,
            has_store=self.has_store,
            secret=self.secret,
            members=self.members,
        )
        return load_framework(framework).make_call_env(meeting)

    def next_part(self) -> int:
        """Of the store, for one call alone: what others left in it is not found."""
        self.num_calls += 1
        return self.num_calls


class LeadRendezvous:
    """One store for each framework; renewed when much was left in it.

    `lose` is told of a cluster that is gone: how, with what of it, and on which node.
    """

    def __init__(
        self,
        plan: Plan,
        address: str,
        nodes: NodeTable,
        status_writer: StatusWriter,
        lose: Callable[[MeetingPoint, FailureKind, str, int], None],
    ) -> None:
        self.address = plan.master_addr or address or _LOOPBACK
        self._pod_address = "" if address == _LOOPBACK else address
        self._pod_ports_taken: set[int] = set()  # by clusters that perhaps still leave them
        self._wanted_port = plan.master_port
        self._nodes = nodes
        self._status_writer = status_writer
        self._lose = lose
        self._stores: dict[str, MeetingPoint] = {}  # by framework
        self._held: set[int] = set()  # ports that wait for a rank 0
        self.handlers: Handlers = {StoreReady: self._take_ready, StoreGone: self._take_gone}

    def find_store(self, framework: str) -> MeetingPoint | None:
        """The store of a framework, open or about to be."""
        return self._stores.get(framework)

    def open_store(
        self, framework: str, number: int, preload: Sequence[str] = (), *, is_shared: bool = False
    ) -> None:
        """Have the store of a framework opened; what it is made of is in `preload`."""
        order = OpenStore(
            number=number,
            framework=framework,
            address=self.address,
            port=self._prefer_port(),
            preload=preload,
        )
        if self._nodes.order(0, order):
            self._stores[framework] = MeetingPoint(number, is_shared=is_shared)

    def open_cluster(
        self,
        framework: str,
        number: int,
        indexes: Iterable[int],
        sizes: NodeSizes,
        preload: Sequence[str] = (),
        *,
        is_shared: bool = False,
    ) -> MeetingPoint:
        """Have the cluster of a framework on these nodes, which may be there already, but of other nodes."""
        store = self._stores.get(framework)
        if store is not None and store.sizes != sizes:
            self.close_store(framework)
            self._lose(store, FailureKind.LOST_NODE, "", 0)
            store = None
        if store is None:
            store = MeetingPoint(number, is_shared=is_shared, sizes=sizes)
            store.secret = os.urandom(32).hex()
            store.wanted.update(index for index in indexes if index)
            self._stores[framework] = store
            self._nodes.order(0, self._order_cluster(framework, store, 0, preload=preload))
            self._order_ahead(framework, store)
        elif store.others is not None:
            store.wanted.update(index for index in indexes if index)
            store.others.want(store.wanted)
        return store

    def _order_ahead(self, framework: str, store: MeetingPoint) -> None:
        """Where it is known at which port node 0 will be, have the other nodes start while it does."""
        cluster = load_framework(framework).cluster
        port = 0 if cluster is None else cluster.pod_port
        if port and self._pod_address and port not in self._pod_ports_taken:
            self._pod_ports_taken.add(port)
            self._order_others(framework, store, self._pod_address, port)

    def _order_others(self, framework: str, store: MeetingPoint, address: str, port: int) -> None:
        store.others = ClusterNodes(
            self._nodes,
            self._status_writer,
            lambda index: self._order_cluster(framework, store, index, address, port),
            store.wanted,
        )
        store.others.check()

    def _order_cluster(
        self,
        framework: str,
        store: MeetingPoint,
        index: int,
        address: str = "",
        port: int = 0,
        *,
        preload: Sequence[str] = (),
    ) -> OpenStore:
        sizes = store.sizes
        if sizes is None:
            raise RuntimeError("a store is no cluster")
        cluster = ClusterNode(
            size=sizes.others if index else sizes.first,
            num_nodes=len(store.wanted) + 1,
            secret=store.secret,
            version=sizes.version,
            pretends_gpus=sizes.pretends_gpus,
            joins=bool(index),
            cwd=sizes.cwd,
            paths=sizes.paths,
        )
        return OpenStore(
            number=store.number,
            framework=framework,
            address=address or self.address,
            port=port,
            preload=preload,
            cluster=cluster,
        )

    def check_clusters(self) -> None:
        """Have nodes that came, or came back, join the clusters that they belong to."""
        for store in self._stores.values():
            if store.others is not None:
                store.others.check()

    def close_store(self, framework: str) -> None:
        """A store serves no longer: whatever follows opens another."""
        store = self._stores[framework]
        self._nodes.order(0, CloseStore(number=store.number))
        if store.others is not None:
            store.others.close(store.number)
        self._drop(framework)

    def is_worn(self, framework: str, in_use: Iterable[MeetingPoint | None]) -> bool:
        """Whether a store has served for long, and nobody uses it any more."""
        store = self._stores.get(framework)
        is_old = store is not None and store.sizes is None and store.num_calls >= _MAX_CALLS
        return is_old and all(store is not one for one in in_use)

    def drop_stores(self, *, close: bool = False) -> None:
        """No store serves any more, nor a port that is held in place of one.

        With `close` the processes of clusters are ended on nodes which nothing else has told to.
        """
        for framework in list(self._stores):
            if close and load_framework(framework).cluster is not None:
                self.close_store(framework)
            else:
                self._drop(framework)

    def _drop(self, framework: str) -> None:
        self._release(self._stores.pop(framework))

    def hold_port(self, number: int) -> MeetingPoint:
        """A meeting without a store: a port at which rank 0 opens one."""
        meeting = MeetingPoint(number)
        self.do_without(meeting)
        return meeting

    def do_without(self, meeting: MeetingPoint) -> None:
        """There is no store here: rank 0 opens one at a port that is held for it."""
        meeting.held = hold_port(self._prefer_port())
        meeting.port = meeting.held.number
        self._held.add(meeting.port)

    def leave(self, meeting: MeetingPoint | None) -> None:
        """The ranks of a world are done with it."""
        if meeting is not None and not meeting.is_shared:
            self._release(meeting)

    def _release(self, meeting: MeetingPoint) -> None:
        if meeting.held is not None:
            meeting.held.release()
            self._held.discard(meeting.held.number)

    def _prefer_port(self) -> int:
        """The usual port, unless it is held for another: a rank that asks for its number would get it."""
        return self._wanted_port if self._wanted_port not in self._held else 0

    def _take_ready(self, index: int, message: StoreReady, _body: bytes) -> None:
        """Node 0 says that a store is open, or that there can be none; others that they are in a cluster."""
        for framework, store in self._stores.items():
            if store.number != message.number:
                continue
            if store.sizes is not None:
                self._take_cluster(framework, store, index, message)
            elif store.port is None:
                if message.port:
                    store.port = message.port
                else:
                    self.do_without(store)

    def _take_cluster(
        self, framework: str, store: MeetingPoint, index: int, message: StoreReady
    ) -> None:
        if message.note:
            self._status_writer.add_condition("note", names.REASON_CLUSTER_NOTE, message.note)
        cluster = load_framework(framework).cluster
        if message.dashboard and cluster is not None:
            usual = f"port {cluster.dashboard_port}"
            self._status_writer.add_condition(usual, names.REASON_PORT, message.dashboard)
        if index and store.others is not None:
            store.others.take_ready(index, message)
        elif index == 0 and store.port is None:
            store.port, store.address = message.port, message.address
            store.error = message.error
            if store.error and store.others is not None:
                store.others.close(store.number)
            elif not store.error and store.others is None:
                self._order_others(framework, store, message.address, message.port)

    def _take_gone(self, index: int, message: StoreGone, _body: bytes) -> None:
        for framework, store in list(self._stores.items()):
            if store.number != message.number:
                continue
            cluster = load_framework(framework).cluster
            if cluster and store.others is not None and index and not cluster.needs_all:
                store.others.lose(index, cluster.other)
                continue
            self._give_up(framework, store, index)

    def lose_node(self, index: int) -> None:
        """A node is gone, and with it each cluster that is none without it."""
        for framework, store in list(self._stores.items()):
            cluster = load_framework(framework).cluster
            if cluster is not None and cluster.needs_all and index in (0, *store.wanted):
                self._give_up(framework, store, index)

    def _give_up(self, framework: str, store: MeetingPoint, index: int) -> None:
        cluster = load_framework(framework).cluster
        if store.others is not None and not store.error:
            store.others.close(store.number)
        if index and cluster is not None:
            self._nodes.order(0, CloseStore(number=store.number))
        self._drop(framework)
        store.is_given_up = True
        if cluster is not None and not store.error:
            # a process may be started again where its node is; what needs one of many has its own ways
            is_here = cluster.needs_all and index in self._nodes
            kind = FailureKind.KILLED if is_here else FailureKind.LOST_NODE
            self._lose(store, kind, cluster.other if index else cluster.first, index)

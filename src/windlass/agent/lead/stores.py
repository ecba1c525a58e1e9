"""Rendezvous stores of ranks, opened on node 0 or by rank 0 at a reserved port.

A store serves the ranks of one attempt, or all worlds of a compute. A framework with its own processes
has a cluster instead of a store. See `agent.lead.clusters`.

If rank 0 opens the store itself, the lead binds a free port with SO_REUSEADDR and does not listen. While
the lead holds the port, the kernel does not give it to a process that asks for any free port. Rank 0 can
still bind it, because its store asks for this number with SO_REUSEADDR. The port is never free in between.
"""

from __future__ import annotations

import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from windlass.agent.lead.node_table import NodeTable
from windlass.plan.plan import Plan, RankRendezvous
from windlass.wire.messages.worlds import CloseStore, OpenStore, StoreGone, StoreReady

LOOPBACK = "127.0.0.1"
_MAX_CALLS = 500


@dataclass(slots=True)
class ReservedPort:
    """Port that this process reserves until `release`."""

    number: int
    _socket: socket.socket

    def release(self) -> None:
        self._socket.close()


def reserve_port(preferred: int = 0) -> ReservedPort:
    """Reserve `preferred` if it is free, otherwise any free port."""
    try:
        return _reserve(preferred)
    except OSError:
        if preferred == 0:
            raise
        return _reserve(0)


def _reserve(number: int) -> ReservedPort:
    reserved = _bind(socket.AF_INET6, "::", number) or _bind(socket.AF_INET, "0.0.0.0", number)  # noqa: S104
    if reserved is None:
        raise OSError(f"port {number} is in use")
    return ReservedPort(reserved.getsockname()[1], reserved)


def _bind(family: socket.AddressFamily, address: str, number: int) -> socket.socket | None:
    try:
        reserved = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            reserved.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        reserved.bind((address, number))
    except OSError:
        reserved.close()
        return None
    return reserved


@dataclass(slots=True)
class Store:
    """Store that node 0 serves, or a reserved port where rank 0 of one world opens its own store."""

    number: int
    port: int | None = None  # None if not known yet
    reserved: ReservedPort | None = None  # if rank 0 opens the store
    num_calls: int = 0
    is_shared: bool = False  # whether all worlds of a compute use it

    @property
    def has_store(self) -> bool:
        """True if node 0 serves the store, and False if rank 0 opens one."""
        return self.reserved is None

    def describe(self, address: str) -> RankRendezvous:
        """Return the connection details for ranks. `address` is that of node 0."""
        return RankRendezvous(address=address, port=self.port or 0, has_store=self.has_store)

    def next_part(self) -> int:
        """Return the number of a part of the store that only one call uses."""
        self.num_calls += 1
        return self.num_calls


class Stores:
    """Stores on node 0, one per framework.

    A store is replaced after many calls, because its data accumulates.
    """

    def __init__(self, plan: Plan, address: str, nodes: NodeTable) -> None:
        self.address = plan.master_addr or address or LOOPBACK  # node 0's address for ranks
        self._wanted_port = plan.master_port
        self._nodes = nodes
        self._stores: dict[str, Store] = {}  # keys are framework names
        self._reserved: set[int] = set()  # ports reserved for a rank 0

    def find(self, framework: str) -> Store | None:
        """Return the store of a framework, or None. It may not be open yet."""
        return self._stores.get(framework)

    def open(
        self, framework: str, number: int, preload: Sequence[str] = (), *, is_shared: bool = False
    ) -> None:
        """Order node 0 to open the store of a framework. `preload` lists the modules that the store needs."""
        order = OpenStore(
            number=number,
            framework=framework,
            address=self.address,
            port=self._prefer_port(),
            preload=preload,
        )
        if self._nodes.order(0, order):
            self._stores[framework] = Store(number, is_shared=is_shared)

    def close(self, framework: str) -> None:
        """Close a store. Later calls or attempts open another."""
        self._nodes.order(0, CloseStore(number=self._stores[framework].number))
        self._release(self._stores.pop(framework))

    def is_overused(self, framework: str, in_use: Iterable[object]) -> bool:
        """Return whether a store has served many calls and no world uses it any more."""
        store = self._stores.get(framework)
        is_old = store is not None and store.num_calls >= _MAX_CALLS
        return is_old and all(store is not one for one in in_use)

    def drop_all(self) -> None:
        """Forget all stores, and release the reserved ports."""
        for framework in list(self._stores):
            self._release(self._stores.pop(framework))

    def reserve_port(self, number: int) -> Store:
        """Reserve a port at which rank 0 opens a store."""
        store = Store(number)
        self.reserve_rank0_port(store)
        return store

    def reserve_rank0_port(self, store: Store) -> None:
        """Reserve a port at which rank 0 opens the store, because node 0 cannot."""
        store.reserved = reserve_port(self._prefer_port())
        store.port = store.reserved.number
        self._reserved.add(store.port)

    def leave(self, store: Store) -> None:
        """Release the store of a world whose ranks have ended, unless it is shared."""
        if not store.is_shared:
            self._release(store)

    def _release(self, store: Store) -> None:
        if store.reserved is not None:
            store.reserved.release()
            self._reserved.discard(store.reserved.number)

    def _prefer_port(self) -> int:
        """Return the wanted port, or 0 if it is reserved already, because two ranks could then bind it."""
        return self._wanted_port if self._wanted_port not in self._reserved else 0

    def take_ready(self, message: StoreReady) -> None:
        """Record that a store is open. If it could not be opened, rank 0 opens one."""
        for store in self._stores.values():
            if store.number == message.number and store.port is None:
                if message.port:
                    store.port = message.port
                else:
                    self.reserve_rank0_port(store)

    def take_gone(self, message: StoreGone) -> None:
        """Forget a store whose process has ended."""
        for framework, store in list(self._stores.items()):
            if store.number == message.number:
                self._release(self._stores.pop(framework))

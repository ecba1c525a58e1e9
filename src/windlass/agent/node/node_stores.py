"""The stores of one node, in which ranks meet: one for an attempt, or one for all calls.

Each is a fork of the fork server, opened and closed as the lead says, which hears its port. What a store is,
is a framework's business.
"""

from __future__ import annotations

import os
import signal

from windlass.agent.node import processes
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.streams import RankStreams
from windlass.agent.node.world_ranks import Tell
from windlass.wire.messages.forkserver import StoreOpened, StoreStarted
from windlass.wire.messages.worlds import OpenStore, StoreGone, StoreReady

_DIED = "its process was killed while it started"


class NodeStores:
    """Stores by number. With `are_shared` they outlive the ranks that meet there, so that a loss is told."""

    def __init__(self, forks: ForkServer, tell: Tell, *, are_shared: bool) -> None:
        self._forks = forks
        self._tell = tell
        self._are_shared = are_shared
        self._waiting: list[OpenStore] = []  # for the port of those that close
        self._pids: dict[int, int | None] = {}  # None: asked for, not forked yet
        self._unopened: set[int] = set()
        self._closing: set[int] = set()  # pids
        self._clusters: set[int] = set()  # numbers of those that are a cluster's node
        self._streams: dict[int, RankStreams] = {}

    def open(self, order: OpenStore, streams: RankStreams | None = None) -> None:
        """Open a store, once those that close have left their port; `streams` take what it prints."""
        if streams is not None:
            self._streams[order.number] = streams
        self._waiting.append(order)
        self._open_waiting()

    def _open_waiting(self) -> None:
        while self._waiting and not self._closing:
            order = self._waiting.pop(0)
            self._forks.revive()
            self._forks.extend(order.preload)
            self._pids[order.number] = None
            self._unopened.add(order.number)
            if order.cluster is not None:
                self._clusters.add(order.number)
            streams = self._streams.get(order.number)
            ends = streams.open() if streams is not None else ()
            self._forks.open_store(
                order.framework,
                attempt=order.number,
                address=order.address,
                port=order.port,
                cluster=order.cluster,
                fds=ends,
            )
            for end in ends:
                os.close(end)

    def close(self, number: int) -> None:
        """Close a store, if there is one of this number."""
        self._waiting = [order for order in self._waiting if order.number != number]
        self._unopened.discard(number)
        self._clusters.discard(number)
        self._kill(self._pids.pop(number, None))
        self._close_streams(number)

    def _close_streams(self, number: int) -> None:
        if (streams := self._streams.pop(number, None)) is not None:
            streams.close()

    def close_clusters(self) -> None:
        """What a node without a lead must not keep."""
        for number in list(self._clusters):
            self.close(number)

    def _kill(self, pid: int | None) -> None:
        if pid is not None:
            self._closing.add(pid)
            processes.kill(pid, signal.SIGKILL)

    def started(self, event: StoreStarted) -> None:
        if event.attempt in self._pids:
            self._pids[event.attempt] = event.pid
        else:  # the order to close it overtook the fork
            self._kill(event.pid)

    def opened(self, event: StoreOpened) -> None:
        self._unopened.discard(event.attempt)
        ready = StoreReady(number=event.attempt, port=event.port)
        if event.attempt in self._clusters:
            told = {
                name: getattr(event, name) for name in ("address", "error", "note", "dashboard")
            }
            ready = ready.replaced(**told)
        self._tell(ready)

    def exited(self, pid: int) -> None:
        """A process is gone, of a store or not."""
        for number in [number for number, other in self._pids.items() if other == pid]:
            self._lose(number)
        self._closing.discard(pid)
        self._open_waiting()

    def forget(self) -> None:
        """All went with the fork server."""
        for number in list(self._pids):
            self._lose(number)
        self._closing.clear()
        self._open_waiting()

    def _lose(self, number: int) -> None:
        del self._pids[number]
        self._close_streams(number)
        is_cluster = number in self._clusters
        self._clusters.discard(number)
        if number in self._unopened:
            self._unopened.discard(number)
            ready = StoreReady(number=number, port=0)
            self._tell(ready.replaced(error=_DIED) if is_cluster else ready)
        elif self._are_shared or is_cluster:
            self._tell(StoreGone(number=number))

"""One node of a job or compute: starts and ends ranks on orders of the lead, and reports their outcomes.

A node passes orders to its fork server and events to its lead, and makes no decisions. The lead runs in the
process of node 0. `NodeStores` manages the rendezvous stores, each a fork of the fork server.
`ReportSocket` receives the reports of ranks. `agent.node.attempt_ranks` handles the orders that only a job's
lead gives, and `agent.node.compute_orders` those that only a compute's lead gives. Both register their
handlers with the node and add their worlds to its table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from windlass import names, processes, records
from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.node.rank_streams import RankStreams, share_room
from windlass.agent.node.world_ranks import Echo, LiveRank, SendToLead, WorldRanks
from windlass.errors import ProtocolError
from windlass.frameworks.framework import load_framework
from windlass.spec.work import Calls
from windlass.wire.lead_handover import LeadHandover
from windlass.wire.log_lines import pseudo_rank
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.forkserver import (
    ForkRank,
    ForkServerGone,
    GuardRanks,
    ModulesImported,
    ProcessExited,
    ProcessStarted,
    StoreOpened,
    StoreStarted,
)
from windlass.wire.messages.jobs import ImportsReady, JoinLead, KeepHandover, NodeTrouble
from windlass.wire.messages.link import Heartbeat, Welcome
from windlass.wire.messages.ranks import RANK_TO_NODE, RankReport
from windlass.wire.messages.worlds import (
    CloseStore,
    EndWorld,
    OpenStore,
    StoreGone,
    StoreReady,
    WorldCleared,
)

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from windlass.agent.rank_lease import RankLease


_DIED = "its process was killed while it started"
logger = logging.getLogger(__name__)


class NodeStores:
    """Stores by number. With `are_shared`, they outlive their ranks, and the loss of a store is reported."""

    def __init__(self, forks: ForkServer, send_to_lead: SendToLead, *, are_shared: bool) -> None:
        self._forks = forks
        self._send_to_lead = send_to_lead
        self._are_shared = are_shared
        self._waiting: list[OpenStore] = []  # wait until closing stores have freed their ports
        self._pids: dict[int, int | None] = {}  # None: requested but not forked yet
        self._unopened: set[int] = set()
        self._closing: set[int] = set()  # pids
        self._clusters: set[int] = set()  # numbers of the stores that are a cluster's processes
        self._streams: dict[int, RankStreams] = {}

    def open(self, order: OpenStore, streams: RankStreams | None = None) -> None:
        """Open a store once closing stores have freed their ports. `streams` receive its output."""
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
        """Close the store with this number, if any."""
        self._waiting = [order for order in self._waiting if order.number != number]
        self._unopened.discard(number)
        self._clusters.discard(number)
        self._kill(self._pids.pop(number, None))
        self._close_streams(number)

    def _close_streams(self, number: int) -> None:
        if (streams := self._streams.pop(number, None)) is not None:
            streams.close()

    def close_clusters(self) -> None:
        """Close all cluster processes, because a node without a lead must not keep them."""
        for number in list(self._clusters):
            self.close(number)

    def _kill(self, pid: int | None) -> None:
        if pid is not None:
            self._closing.add(pid)
            processes.kill(pid, signal.SIGKILL)

    def started(self, event: StoreStarted) -> None:
        if event.attempt in self._pids:
            self._pids[event.attempt] = event.pid
        else:  # closed before it was forked
            self._kill(event.pid)

    def opened(self, event: StoreOpened) -> None:
        self._unopened.discard(event.attempt)
        ready = StoreReady(number=event.attempt, port=event.port)
        if event.attempt in self._clusters:
            details = {
                name: getattr(event, name) for name in ("address", "error", "note", "dashboard")
            }
            ready = ready.replaced(**details)
        self._send_to_lead(ready)

    def exited(self, pid: int) -> None:
        """Handle the exit of any process. It may be that of a store."""
        for number in [number for number, other in self._pids.items() if other == pid]:
            self._lose(number)
        self._closing.discard(pid)
        self._open_waiting()

    def forget(self) -> None:
        """Handle the loss of all stores when the fork server died."""
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
            self._send_to_lead(ready.replaced(error=_DIED) if is_cluster else ready)
        elif self._are_shared or is_cluster:
            self._send_to_lead(StoreGone(number=number))


class ReportSocket:
    """Socket for the reports of ranks. Passes every valid report to `take`."""

    def __init__(self, loop: AbstractEventLoop, path: Path, take: Callable[[Any], None]) -> None:
        self.path = path
        self._take = take
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path.unlink(missing_ok=True)  # left behind by an earlier agent
        self._socket.bind(str(path))
        self._socket.setblocking(False)
        loop.add_reader(self._socket.fileno(), self._read)

    def drain(self) -> None:
        """Read all pending reports, so that reports of an exited rank are handled before its exit."""
        while self._read():
            pass

    def _read(self) -> bool:
        try:
            data = self._socket.recv(names.MAX_DATAGRAM_BYTES + 1)
        except BlockingIOError:
            return False
        try:
            message = read_message(data)
        except ProtocolError:
            return True  # not from one of this node's ranks
        self._take(message)
        return True


def read_message(data: bytes) -> Message:
    """Parse a report. It is untrusted, because any process on the node may have sent it."""
    return RANK_TO_NODE.read(records.parse(data, "a report"))


class NodeWorld(Protocol):
    """Part of a world that runs on this node."""

    ranks: WorldRanks

    @property
    def is_over(self) -> bool:
        """True if the world can be removed when its last rank exits."""

    def started(self, rank: int, pid: int) -> None: ...

    def exited(self, rank: LiveRank, code: int) -> None: ...

    def report(self, message: Any) -> None: ...

    def stop(self, order: EndWorld) -> None: ...

    def sweep(self) -> None: ...

    def close(self) -> None: ...


class Node:
    """Ranks of one node, grouped into worlds by number."""

    def __init__(self, context: AgentContext, *, forks: ForkServer, send: SendToLead) -> None:
        self.context = context
        self.forks = forks
        self.send_to_lead = send
        self.worlds: dict[int, NodeWorld] = {}
        self.memory: LeadHandover | None = None  # state to keep for the next lead
        self.echo: Echo | None = None  # receives the output of a framework's own processes
        self._is_compute = isinstance(context.plan.work, Calls)
        self._stores = NodeStores(forks, send, are_shared=self._is_compute)
        self._imported: set[str] = set()
        self._ready: ImportsReady | None = None
        self._emptied = asyncio.Event()
        self._handlers: Handlers = {
            EndWorld: lambda order, _body: self._end(order),
            OpenStore: lambda order, _body: self._open_store(order),
            CloseStore: lambda order, _body: self._stores.close(order.number),
            KeepHandover: self._keep,
            **dict.fromkeys((Welcome, Heartbeat), lambda _message, _body: None),
        }
        self._fork_handlers: Handlers = {
            ProcessStarted: self._on_started,
            ProcessExited: self._on_exited,
            StoreStarted: self._stores.started,
            StoreOpened: self._stores.opened,
            ModulesImported: self._on_imported,
            ForkServerGone: self._on_server_gone,
        }
        loop = asyncio.get_running_loop()
        path = context.run_dir / f"node-{context.index}.sock"
        self._reports = ReportSocket(loop, path, self._on_report)
        forks.listen(loop, lambda event: self._fork_handlers[type(event)](event))
        self._lease = self._start_lease()

    def _start_lease(self) -> RankLease | None:
        """Make the fork server guard the ranks, unless no other node could consider this one lost.

        On one machine there is no fencing by time, because the lead kills the processes of a lost node.
        """
        context = self.context
        if not context.is_pod or (len(context.plan.nodes) == 1 and not self._is_compute):
            return None
        from windlass.agent.rank_lease import RankLease

        lease = RankLease.make()
        backstop_s = context.limits.slack_s / 2
        self.forks.guard(GuardRanks(backstop_s=backstop_s), lease.fd)
        return lease

    def renew_lease(self, received_s: float) -> None:
        """Extend the lease of the ranks. The lead last sent data at `received_s`, by `read_clock`."""
        if self._lease is not None:
            self._note_lapse()
            self._lease.extend(received_s + self.context.limits.ranks_gone_s)

    def _note_lapse(self) -> None:
        """Mark the ranks as fenced if their lease lapsed. They did not fail, but this node was cut off."""
        if self._lease is not None and self._lease.until_s and self._lease.left_s < 0:
            for world in self.worlds.values():
                world.ranks.is_fenced = True

    def take(self, handlers: Handlers) -> None:
        """Register handlers for more orders."""
        self._handlers.update(handlers)

    def receive(self, message: Message, body: bytes = b"") -> None:
        """Process an order of the lead."""
        self._handlers[type(message)](message, body)

    def _keep(self, order: KeepHandover, _body: bytes) -> None:
        self.memory = order.memory

    def introduce(self, about: JoinLead) -> None:
        """Join the lead, with the state that an earlier lead asked this node to keep."""
        self.send_to_lead(about.replaced(memory=self.memory))
        if self._ready is not None:
            self.send_to_lead(self._ready)

    def _open_store(self, order: OpenStore) -> None:
        if order.cluster is not None:
            context = self.context
            cluster = order.cluster.replaced(
                index=context.index,
                own_address=context.address if context.is_pod else "",
                folder=str(context.run_dir),
                cwd=order.cluster.cwd or context.plan.cwd,
                paths=order.cluster.paths or context.plan.paths,
                env=context.plan.env,
            )
            order = order.replaced(cluster=cluster)
        self._stores.open(order, self._make_streams(order))

    def _make_streams(self, order: OpenStore) -> RankStreams | None:
        """Return streams that copy a cluster process's output to the job's folder or to a compute's lead."""
        cluster = load_framework(order.framework).cluster
        if order.cluster is None or cluster is None or not cluster.prints:
            return None
        number = pseudo_rank(self.context.index)
        attempt = 0 if self._is_compute else order.number
        path, max_bytes = Path(os.devnull), names.MAX_LOG_BYTES
        if not self._is_compute:
            self.context.folder.make_attempt(attempt)
            path = self.context.folder.log(attempt, number)
            max_bytes = self._share_log_room()

        def on_lines(lines: bytes) -> None:
            if self._is_compute:
                from windlass.wire.messages.computes import RankPrinted

                self.send_to_lead(RankPrinted(world=0, rank=number, call=""), lines)
            if self.echo is not None:
                self.echo(number, attempt, lines)

        return RankStreams(path, self._on_log_trouble, on_lines, max_bytes=max_bytes)

    # -- starting ranks ------------------------------------------------------------------------

    def make_ranks(self, number: int, preload: Sequence[str] = ()) -> WorldRanks:
        """Return the ranks of a new world. Restarts the fork server if needed, and requests `preload`."""
        self.forks.revive()
        self.forks.extend(preload)
        self.context.folder.make_attempt(number)
        plan = self.context.plan
        ranks = WorldRanks(number, grace_s=plan.grace_s)
        if not self._is_compute:
            ranks.log_bytes = self._share_log_room()
        return ranks

    def _share_log_room(self) -> int:
        """Return how many bytes each rank may log. A framework's own processes count as one rank."""
        plan = self.context.plan
        num_writers = plan.nodes[self.context.index].num_ranks + (plan.sizes is not None)
        return share_room(self.context.folder, len(plan.nodes), num_writers)

    def start_rank(
        self,
        ranks: WorldRanks,
        request: ForkRank,
        on_lines: Callable[[bytes], None] | None,
        channel: Sequence[int] = (),
    ) -> None:
        """Request the fork of a rank with its streams and, if it takes calls, its end of a channel."""
        log = self.context.folder.log(ranks.number, request.rank)
        streams = RankStreams(log, self._on_log_trouble, on_lines, max_bytes=ranks.log_bytes)
        ranks.live[request.rank] = LiveRank(request.rank, streams)
        env = {**request.env, names.REPORT_SOCKET: str(self._reports.path)}
        if not self.context.is_pod and load_framework(request.framework).store is not None:
            env[names.STORE] = str(self.context.run_dir / f"store-{ranks.number}.")
        ends = streams.open()
        self.forks.fork(request.replaced(env=env), (*ends, *channel))
        for end in ends:
            os.close(end)

    def _on_log_trouble(self, message: str) -> None:
        self.send_to_lead(NodeTrouble(reason=names.REASON_LOG_TRUNCATED, message=message))

    # -- events of ranks -----------------------------------------------------------------------

    def _on_started(self, event: ProcessStarted) -> None:
        world = self.worlds.get(event.attempt)
        if world is not None and event.rank in world.ranks.live:
            world.started(event.rank, event.pid)
        else:
            processes.kill_group(event.pid, signal.SIGKILL)

    def _on_exited(self, event: ProcessExited) -> None:
        self._reports.drain()
        self._note_lapse()
        self._stores.exited(event.pid)
        for world in list(self.worlds.values()):
            rank = world.ranks.find(event.pid)
            if rank is not None:
                world.exited(rank, event.code)
                self._check_cleared(world)

    def _on_imported(self, event: ModulesImported) -> None:
        self._imported.update(event.modules)
        self._ready = ImportsReady(
            is_complete=self._imported.issuperset(self.context.plan.preload),
            missing=event.missing,
            culprit=event.culprit,
            num_threads=event.num_threads,
        )
        self.send_to_lead(self._ready)

    def _on_server_gone(self, _event: ForkServerGone) -> None:
        """Handle the death of the fork server. The next world starts a new one."""
        logger.warning("the fork server is gone")
        self._note_lapse()
        self.forget_children()
        if not self._is_compute:
            name = self.context.plan.nodes[self.context.index].name
            message = f"the fork server of {name} died, and its ranks with it"
            self.send_to_lead(NodeTrouble(reason=names.REASON_FORK_SERVER_DIED, message=message))

    def forget_children(self) -> None:
        """Handle the loss of all processes that the fork server had forked."""
        for world in list(self.worlds.values()):
            world.sweep()
            for rank in list(world.ranks.live.values()):
                world.exited(rank, -signal.SIGKILL)
            self._check_cleared(world)
        self._stores.forget()

    def _on_report(self, message: Any) -> None:
        if isinstance(message, RankReport):
            self.send_to_lead(message)
        elif message.attempt in self.worlds:
            self.worlds[message.attempt].report(message)

    # -- ending --------------------------------------------------------------------------------

    def _end(self, order: EndWorld) -> None:
        world = self.worlds.get(order.world)
        if world is None:
            self._report_cleared(order.world)
            return
        self._reports.drain()  # a rank that is already done may exit by itself
        world.stop(order)
        self._check_cleared(world)

    def stop(self, *, now: bool, within_s: float | None = None) -> None:
        """Signal all ranks of all worlds, and kill them after the grace period, at most `within_s`.

        A node that has lost its lead passes `within_s`, because it must not keep its ranks any longer.
        """
        for number in list(self.worlds) or [0]:
            order = EndWorld(world=number, now=now, signal=signal.SIGTERM, within_s=within_s)
            self._end(order)
        self._stores.close_clusters()

    def _check_cleared(self, world: NodeWorld) -> None:
        if not world.ranks.live and world.is_over:
            world.close()
            del self.worlds[world.ranks.number]
            world.sweep()
            self._report_cleared(world.ranks.number)
        if self._is_idle:
            self._emptied.set()

    def _report_cleared(self, number: int) -> None:
        if self.context.index == 0:  # nodes on one machine share the folder
            for path in self.context.run_dir.glob(f"store-{number}.*"):
                path.unlink(missing_ok=True)
        if not self._is_compute:
            self._stores.close(number)  # each attempt has its own
        self.send_to_lead(WorldCleared(world=number, is_last=self._is_idle))

    @property
    def _is_idle(self) -> bool:
        return not any(world.ranks.live for world in self.worlds.values())

    async def idle(self) -> None:
        """Wait until all ranks of this node have exited."""
        while not self._is_idle:
            self._emptied.clear()
            await self._emptied.wait()

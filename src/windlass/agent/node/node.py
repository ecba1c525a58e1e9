"""One node: starts and ends the ranks of its worlds when the lead says so, and tells how they fare.

Talks to the fork server below and to the lead above, which for node 0 is in the same process; decides
nothing. What only a job's lead orders is in `agent.node.attempt_ranks`, what only a compute's does in
`agent.node.compute_orders`: these add their handlers, and put their worlds into the node's table.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.node import processes
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.node_stores import NodeStores
from windlass.agent.node.report_socket import ReportSocket
from windlass.agent.node.streams import RankStreams, share_room
from windlass.agent.node.world_ranks import Echo, LiveRank, Tell, WorldRanks
from windlass.spec.work import Calls
from windlass.wire.lead_handover import LeadHandover
from windlass.wire.log_lines import number_node
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
from windlass.wire.messages.ranks import RankReport
from windlass.wire.messages.worlds import CloseStore, EndWorld, OpenStore, WorldCleared

if TYPE_CHECKING:
    from windlass.agent.node.rank_lease import RankLease

logger = logging.getLogger(__name__)


class NodeWorld(Protocol):
    """A world's part on this node."""

    ranks: WorldRanks

    @property
    def is_over(self) -> bool:
        """Whether it is cleared once no rank is left."""

    def started(self, rank: int, pid: int) -> None: ...

    def exited(self, rank: LiveRank, code: int) -> None: ...

    def report(self, message: Any) -> None: ...

    def stop(self, order: EndWorld) -> None: ...

    def sweep(self) -> None: ...

    def close(self) -> None: ...


class Node:
    """The ranks of one node, in worlds by number."""

    def __init__(self, context: AgentContext, *, forks: ForkServer, send: Tell) -> None:
        self.context = context
        self.forks = forks
        self.tell = send
        self.worlds: dict[int, NodeWorld] = {}
        self.memory: LeadHandover | None = None  # what its lead has told it to keep
        self.echo: Echo | None = None  # is told what a framework's own processes print
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
        """Have the fork server watch over the ranks, unless no other node can take this one for lost.

        On one machine nothing is fenced by time: the lead kills the processes of a node that it lost.
        """
        context = self.context
        if not context.is_pod or (len(context.plan.nodes) == 1 and not self._is_compute):
            return None
        from windlass.agent.node.rank_lease import RankLease

        lease = RankLease.make()
        backstop_s = context.sight.slack_s / 2
        self.forks.guard(GuardRanks(backstop_s=backstop_s), lease.fd)
        return lease

    def renew_lease(self, heard_s: float) -> None:
        """Let ranks live for as long as their lead, heard at `heard_s` of `read_clock`, expects them to."""
        if self._lease is not None:
            self._note_lapse()
            self._lease.extend(heard_s + self.context.sight.ranks_gone_s)

    def _note_lapse(self) -> None:
        """Ranks that are found dead after their lease lapsed did not fail: this node was cut off."""
        if self._lease is not None and self._lease.until_s and self._lease.left_s < 0:
            for world in self.worlds.values():
                world.ranks.is_fenced = True

    def take(self, handlers: Handlers) -> None:
        """Take more orders than those that all leads give."""
        self._handlers.update(handlers)

    def receive(self, message: Message, body: bytes = b"") -> None:
        """An order of the lead."""
        self._handlers[type(message)](message, body)

    def _keep(self, order: KeepHandover, _body: bytes) -> None:
        self.memory = order.memory

    def introduce(self, about: JoinLead) -> None:
        """Join the lead: who is here, and what it should know that an earlier lead may have said."""
        self.tell(about.replaced(memory=self.memory))
        if self._ready is not None:
            self.tell(self._ready)

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
        """Where what a cluster's processes print goes: of a job to its folder, of a compute to the lead."""
        cluster = load_framework(order.framework).cluster
        if order.cluster is None or cluster is None or not cluster.prints:
            return None
        number = number_node(self.context.index)
        attempt = 0 if self._is_compute else order.number
        path, max_bytes = Path(os.devnull), names.MAX_LOG_BYTES
        if not self._is_compute:
            self.context.folder.make_attempt(attempt)
            path = self.context.folder.log(attempt, number)
            max_bytes = self._share_log_room()

        def on_lines(lines: bytes) -> None:
            if self._is_compute:
                from windlass.wire.messages.computes import RankPrinted

                self.tell(RankPrinted(world=0, rank=number, call=""), lines)
            if self.echo is not None:
                self.echo(number, attempt, lines)

        return RankStreams(path, self._on_log_trouble, on_lines, max_bytes=max_bytes)

    # -- starting ranks ------------------------------------------------------------------------

    def make_ranks(self, number: int, preload: Sequence[str] = ()) -> WorldRanks:
        """What a world needs before its first process."""
        self.forks.revive()
        self.forks.extend(preload)
        self.context.folder.make_attempt(number)
        plan = self.context.plan
        ranks = WorldRanks(number, grace_s=plan.grace_s)
        if not self._is_compute:
            ranks.log_bytes = self._share_log_room()
        return ranks

    def _share_log_room(self) -> int:
        """Return how much each rank may log, and so may the processes of a framework here."""
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
        """Have a rank forked, with its streams and, where it takes calls, its end of a channel."""
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
        self.tell(NodeTrouble(reason=names.REASON_LOG_TRUNCATED, message=message))

    # -- hearing of ranks ----------------------------------------------------------------------

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
        self.tell(self._ready)

    def _on_server_gone(self, _event: ForkServerGone) -> None:
        """The fork server died; the next world gets a new one."""
        logger.warning("the fork server is gone")
        self._note_lapse()
        self.forget_children()
        if not self._is_compute:
            name = self.context.plan.nodes[self.context.index].name
            message = f"the fork server of {name} died, and its ranks with it"
            self.tell(NodeTrouble(reason=names.REASON_FORK_SERVER_DIED, message=message))

    def forget_children(self) -> None:
        """All that the fork server had forked went with it."""
        for world in list(self.worlds.values()):
            world.sweep()
            for rank in list(world.ranks.live.values()):
                world.exited(rank, -signal.SIGKILL)
            self._check_cleared(world)
        self._stores.forget()

    def _on_report(self, message: Any) -> None:
        if isinstance(message, RankReport):
            self.tell(message)
        elif message.attempt in self.worlds:
            self.worlds[message.attempt].report(message)

    # -- ending --------------------------------------------------------------------------------

    def _end(self, order: EndWorld) -> None:
        world = self.worlds.get(order.world)
        if world is None:
            self._tell_cleared(order.world)
            return
        self._reports.drain()  # a rank that is done already ends by itself, and loses nothing
        world.stop(order)
        self._check_cleared(world)

    def stop(self, *, now: bool, within_s: float | None = None) -> None:
        """End all ranks of all worlds: ask, and after the grace, which `within_s` bounds, make it so.

        A node that has lost sight of another must not keep ranks for longer.
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
            self._tell_cleared(world.ranks.number)
        if self._is_idle:
            self._emptied.set()

    def _tell_cleared(self, number: int) -> None:
        if self.context.index == 0:  # all nodes of a machine share the folder
            for path in self.context.run_dir.glob(f"store-{number}.*"):
                path.unlink(missing_ok=True)
        if not self._is_compute:
            self._stores.close(number)  # the attempt's own
        self.tell(WorldCleared(world=number, is_last=self._is_idle))

    @property
    def _is_idle(self) -> bool:
        return not any(world.ranks.live for world in self.worlds.values())

    async def idle(self) -> None:
        """Until no rank of this node is left."""
        while not self._is_idle:
            self._emptied.clear()
            await self._emptied.wait()

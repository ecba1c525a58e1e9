"""Lead of a compute: runs the calls of all clients on warm nodes, one at a time.

Calls run in the order of arrival, for all clients. Each waits until the ranks of the previous call are
gone. While no call runs, a spare world of the last shape waits with its ranks forked.
`agent.lead.calls.call_server` handles client requests. Nodes manage ranks and processes.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import Any

from windlass import names
from windlass.agent.lead.attempt import StopRequest
from windlass.agent.lead.calls.call_queue import CallHistory, CallQueue, Inactivity
from windlass.agent.lead.calls.call_runner import CallRunner
from windlass.agent.lead.calls.call_state import Call, RankAnswer
from windlass.agent.lead.calls.ready_nodes import ReadyNodes, make_setup
from windlass.agent.lead.calls.world_pool import WorldPool
from windlass.agent.lead.clusters import Cluster, Clusters, make_rendezvous_handlers
from windlass.agent.lead.node_table import NodeHandlers, NodeTable, SendBody
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.stores import Stores
from windlass.agent.lead.world import Changes, WorldTable, keep_log
from windlass.agent.link.payload_parts import Ship
from windlass.agent.projects import Projects
from windlass.agent.silence_limits import DEFAULT_LIMITS, Disconnect, SilenceLimits
from windlass.errors import WindlassError
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import AgentIdentity, LeadHandover
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.calls import (
    CallNotice,
    CallPrinted,
    CallQueued,
)
from windlass.wire.messages.computes import (
    CallAnswer,
    CallItem,
    RankPrinted,
    SendMore,
    SettingUp,
    WorldAbsent,
)
from windlass.wire.messages.jobs import JoinLead
from windlass.wire.messages.ranks import RankReport
from windlass.wire.messages.worlds import RankEnded, WorldCleared
from windlass.wire.payloads import forget
from windlass.wire.states import RankState
from windlass.wire.status import FailureKind, Phase, make_job_verdict

logger = logging.getLogger(__name__)

_ABANDONED_S = 10.0


class CallLead:
    """Lead of one compute, from the first node that joins until a client ends it or it times out.

    `projects` are those of node 0. With `keeps_logs`, the lead stores the logs of other nodes, because
    they do not share its folder.
    """

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        *,
        address: str = "",
        incarnation: str = "",
        limits: SilenceLimits = DEFAULT_LIMITS,
        projects: Projects | None = None,
        keeps_logs: bool = False,
    ) -> None:
        self._status_writer = status_writer
        self._keeps_logs = keeps_logs
        self._changed = Changes()
        self.nodes = NodeTable(
            plan, status_writer, self._changed.set, incarnation=incarnation, limits=limits
        )
        self.worlds = WorldTable(self.nodes)
        self.setup = make_setup({}, list(plan.work.steps))  # type: ignore[union-attr]
        ready_nodes = ReadyNodes(self.nodes, self._changed, projects, lambda: self.setup)
        stores = Stores(plan, address, self.nodes)
        self._clusters = Clusters(
            self.nodes,
            status_writer,
            address=stores.address,
            own_address=address,
            lose=self._lose_cluster,
        )
        self.pool = WorldPool(
            self.nodes,
            self.worlds,
            ready_nodes,
            stores,
            self._clusters,
            self._changed,
            status_writer,
        )
        self.stop = StopRequest()
        self.history = CallHistory()
        self.queue = CallQueue()
        self._runner = CallRunner(
            self.nodes,
            self.worlds,
            self.pool,
            self.history,
            self.stop,
            self._changed,
            status_writer.folder,
            self.lose,
        )
        self.inactivity = Inactivity(
            plan.work.ttl_s,  # type: ignore[union-attr]
            idle_s=lambda: self.queue.idle_s,
            end=lambda why: self.end(FailureKind.TIMEOUT, why),
        )
        self.record: dict[str, Any] = {}  # callables deployed here, to be called by name
        self._handlers = self._make_handlers(ready_nodes, stores)

    def _make_handlers(self, ready_nodes: ReadyNodes, stores: Stores) -> Handlers:
        """Return the handlers for messages from nodes."""
        return {
            **NodeHandlers(self.nodes, self._status_writer).handlers,
            **ready_nodes.handlers,
            **make_rendezvous_handlers(stores, self._clusters),
            WorldCleared: self.worlds.take_cleared,
            CallAnswer: self._take_answer,
            CallItem: self._take_item,
            RankPrinted: self._take_log,
            RankEnded: self._take_end,
            WorldAbsent: self._take_absence,
            RankReport: lambda _index, report, _body: self._status_writer.report(report),
            SettingUp: self._take_setting_up,
        }

    @property
    def plan(self) -> Plan:
        """Plan with the currently expected nodes."""
        return self.nodes.plan

    @property
    def is_idle(self) -> bool:
        return self.queue.is_idle

    # -- the compute's lifecycle ---------------------------------------------------------------

    async def run(self) -> None:
        """Run calls until the compute ends. Afterwards the status is final."""
        self._status_writer.set_phase(Phase.RUNNING, names.REASON_READY, "waiting for calls")
        self.inactivity.check()
        while (why := self.stop.verdict) is None:
            call = self.queue.start_next()
            if call is None:
                await self.queue.wait()
                continue
            try:
                await self._runner.run(call)
            except WindlassError as error:
                self._refuse(call, error.message)
            except Exception as error:  # a bug in the lead must not end the compute
                logger.exception("call %s", call.id)
                self._refuse(call, f"the lead failed: {error!r}")
            finally:
                self.queue.end_current()
        for call in self.queue.all():
            self._runner.end(call, why)
        await self.pool.dismiss_all(now=self.stop.now)
        self._status_writer.set_verdict(why, final=True)
        is_idle = why.kind is FailureKind.TIMEOUT
        phase = Phase.SUCCEEDED if is_idle else Phase.CANCELLED
        reason = names.REASON_INACTIVE if is_idle else names.REASON_CANCELLED
        self._status_writer.set_phase(phase, reason, why.message)

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Request the end of the compute, with `signum` for the ranks."""
        verdict = make_job_verdict(self.plan, kind, message, at_s=time.time())
        self.stop.request(verdict, now=now, signum=signum)
        self._changed.set()
        self.queue.wake()
        if (call := self.queue.current) is not None:
            call.stop = call.stop or self.stop.verdict
            call.stop_signal = self.stop.signal
            call.end()

    async def leave(self) -> None:
        """Do nothing. When this node stops, its calls are lost, and the other nodes end their ranks."""

    @property
    def has_lost_nodes(self) -> bool:
        """False, because a later lead can run calls on any nodes and needs no report from this one."""
        return False

    # -- nodes ---------------------------------------------------------------------------------

    def join(
        self, index: int, send: SendBody, about: JoinLead, *, ship: Ship | None = None
    ) -> None:
        """Add a node that has joined."""
        self.nodes.join(index, send, about, ship)
        self._clusters.check()

    def receive(self, index: int, message: Message, body: bytes = b"") -> None:
        """Process a message from a node."""
        self._handlers[type(message)](index, message, body)
        self._changed.set()

    def lose(
        self, index: int, why: str = "", *, disconnect: Disconnect = Disconnect.CLOSED
    ) -> None:
        """Record the loss of a node and of its ranks in every world."""
        if self.worlds.lose(index, why, disconnect) is not None and self.queue.current is not None:
            self.queue.current.lose_node(index, why)
        self._clusters.lose_node(index)

    def _lose_cluster(self, cluster: Cluster, kind: FailureKind, what: str, node: int) -> None:
        """Mark the worlds that used a lost cluster as dead, and fail the call that runs on one of them."""
        for world in self.worlds.all():
            if world.rendezvous is cluster:
                world.is_alive = False
                self._break_off_on(world.number, kind, what, node)

    def _break_off_on(self, number: int, kind: FailureKind, what: str, node: int) -> None:
        call = self.queue.current
        if call is not None and call.attempt is not None and call.attempt.number == number:
            message = f"{what} on {self.nodes.describe(node)} was lost, and the cluster with it"
            verdict = make_job_verdict(self.plan, kind, message, at_s=time.time(), node=node)
            call.attempt.fail(verdict)
            call.end()

    def record_exit(self, index: int) -> None:
        """Record a leaving node's report that its ranks are dead."""
        self.lose(index)

    def record_permanent_exit(self, seat: AgentIdentity, _memory: LeadHandover | None) -> None:
        """Record that an unreachable node has ended permanently and has no ranks."""
        self.nodes.record_exit(seat)

    def scale(self, num_nodes: int) -> None:
        """Set the number of nodes. Does not end pods, because their creator does that."""
        self.pool.scale(num_nodes, ends_others=not self._keeps_logs)

    # -- calls ---------------------------------------------------------------------------------

    def ask(self, call: Call) -> None:
        """Queue a call, or send it immediately to kept ranks that can take it.

        A call sent immediately bypasses the queue unless it fails.
        """
        self.history.add(call)
        call.timer = self._start_timer(call)
        if self.is_idle and call.profile.slot and not call.file:
            world = self.pool.find(call)
            if world is not None:
                self.queue.current = call
                call.on_trouble = self.queue.put_first
                self._runner.dispatch(world, call)
                return
        if ahead := self.queue.add(call):
            call.report_waiting(CallQueued(id=call.id, ahead=len(ahead), first=ahead[0].id))

    def abandon(self, call: Call) -> None:
        """Cancel a stream without listeners, unless one returns within 10 s."""

        def look() -> None:
            if not call.listeners:
                self.cancel(call, "no client listened to its stream any more")

        asyncio.get_running_loop().call_later(_ABANDONED_S, look)

    def cancel(
        self,
        call: Call,
        why: str,
        *,
        kind: FailureKind = FailureKind.CANCELLED,
        signum: int = signal.SIGTERM,
    ) -> None:
        """End a queued or running call. The compute stays."""
        if call.is_final:
            return
        if call.stop is None:
            call.stop_signal = signum
        call.stop = call.stop or make_job_verdict(self.plan, kind, why, at_s=time.time())
        if self.queue.remove(call):
            call.stop_timer()
            self._runner.end(call, call.stop)
        else:
            call.end()
            self._changed.set()

    def _start_timer(self, call: Call) -> asyncio.TimerHandle | None:
        limit_s = call.profile.timeout_s
        if limit_s is None:
            return None
        why = f"the call was not done after its time limit of {limit_s:g} s"
        loop = asyncio.get_running_loop()
        return loop.call_later(limit_s, lambda: self.cancel(call, why, kind=FailureKind.TIMEOUT))

    def _take_answer(self, _index: int, message: CallAnswer, body: bytes) -> None:
        call = self.history.get(message.call)
        if call is None or call.is_final:
            forget(message.file)
            return
        answer = RankAnswer(message, body)
        call.answered(answer)
        has_ended = call.has_returned and call.stop is None
        is_wanted = call.profile.collect == "all" or message.rank == 0
        if is_wanted or message.state is RankState.RAISED:
            call.pass_on(answer)
        if has_ended:
            call.send_unsent(ends=True)
            self._runner.end(call, None, is_reported=True)
            if call.on_trouble is not None:  # it bypassed the queue
                call.stop_timer()
                self.queue.end_current()

    def _take_item(self, _index: int, message: CallItem, body: bytes) -> None:
        call = self.history.get(message.call)
        if call is None or call.is_final:
            forget(message.file)
            return
        item = RankAnswer(message, body)
        if message.waits:
            call.pacing = asyncio.ensure_future(self._keep_pace(call))
        call.yielded(item)
        if call.profile.collect == "all" or message.rank == 0:
            for listener in call.listeners:
                call.send_answer(listener, item)

    async def _keep_pace(self, call: Call) -> None:
        """Resume a stream once all its readers have caught up, because the lead buffers unread items."""
        for listener in list(call.listeners):
            await listener.catch_up()
        world = self._runner.world_of(call)
        if world is not None:
            self.worlds.send(world, SendMore(world=world.number))

    def _take_log(self, index: int, message: RankPrinted, body: bytes) -> None:
        call = self.queue.current
        is_live = call is not None and not call.is_final  # an ended call sends no more output
        if call is not None and is_live and message.call in ("", call.id):
            call.send(CallPrinted(id=call.id, rank=message.rank), body)
        if message.rank < 0:
            # output of the running call, or of the last one if it arrives after the answer
            started = call or self.history.last_started
            if started is not None and started.attempt is not None:
                number = started.attempt.number
                keep_log(self._status_writer.folder, number, message.rank, body)
        elif index and self._keeps_logs:
            keep_log(self._status_writer.folder, message.world, message.rank, body)

    def _take_end(self, _index: int, message: RankEnded, _body: bytes) -> None:
        """Record that a rank's process ended before it answered a call, or between calls."""
        self.worlds.lose_rank(message.outcome.attempt)
        if (call := self.queue.current) is not None:
            call.lose_rank(message.outcome, given=message.given, answered=message.answered)

    def _take_absence(self, index: int, message: WorldAbsent, _body: bytes) -> None:
        """Record that a node got a call for ranks that it does not have."""
        self.worlds.lose_rank(message.world)
        call = self.queue.current
        if call is not None and call.attempt is not None and call.attempt.number == message.world:
            call.lose_node(index, "its ranks were gone before the call arrived")

    def _take_setting_up(self, index: int, message: SettingUp, _body: bytes) -> None:
        if (call := self.queue.current) is not None:
            call.send(CallNotice(id=call.id, line=f"node {index}: {message.line}"))

    def _refuse(self, call: Call, why: str) -> None:
        kind = FailureKind.START_FAILED
        self._runner.end(call, make_job_verdict(self.plan, kind, why, at_s=time.time()))

"""Lead of a job: part of node 0's agent that decides when attempts start, end and are retried.

It receives reports about ranks from all nodes, including its own. It sends orders to nodes and writes the
job status. After the ranks have ended, it waits for the remaining logs and results, and reports missing
results. Nodes manage processes, and `agent.lead.lead_server` handles connections.
"""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.lead.attempt import SETTLE_S, Attempt, RankHandlers, StopRequest
from windlass.agent.lead.clusters import (
    Cluster,
    Clusters,
    RendezvousPoint,
    make_rendezvous_handlers,
)
from windlass.agent.lead.jobs.next_attempt import Budget, Gathering
from windlass.agent.lead.node_table import JoinedNode, NodeHandlers, NodeTable, SendBody
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.stores import Store, Stores
from windlass.agent.lead.world import Changes, World, WorldTable
from windlass.agent.silence_limits import DEFAULT_LIMITS, Disconnect, SilenceLimits
from windlass.errors import count_noun
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import Plan
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder
from windlass.wire.lead_handover import AgentIdentity, LeadHandover
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.jobs import (
    FilesFlushed,
    FlushFiles,
    JoinLead,
    KeepHandover,
    ReleaseRanks,
    StartAttempt,
)
from windlass.wire.messages.link import FilePiece
from windlass.wire.messages.worlds import WorldCleared
from windlass.wire.status import FailureKind, Phase, Verdict, make_job_verdict

if TYPE_CHECKING:
    from windlass.agent.link.payload_parts import Ship

logger = logging.getLogger(__name__)
_STALL_S = 60.0  # stop waiting for files after this long without data


class RemainingFiles:
    """Files of ranks that the lead has requested from nodes, and the nodes that have sent all of them."""

    def __init__(self, nodes: NodeTable, changed: Changes, status_writer: StatusWriter) -> None:
        self._nodes = nodes
        self._changed = changed
        self._status_writer = status_writer
        self._requested: dict[int, JoinedNode] = {}
        self._flushed: set[int] = set()
        self._num_pieces = 0  # number of file pieces received
        self.handlers: Handlers = {FilesFlushed: self._take_flushed, FilePiece: self._count_piece}

    async def collect(self, attempt: Attempt, *, is_complete: bool) -> None:
        """Wait for the remaining files while data arrives.

        If all ranks have returned (`is_complete`), also wait for lost nodes that have not sent a result.
        """
        unsent: set[int] = set()

        def is_over() -> bool:
            self._ask_joined()
            gone = {index for index in self._find_missing(attempt) if index not in self._nodes}
            unsent.update(gone if is_complete else ())
            return self._flushed.issuperset(self._nodes.joined()) and not (is_complete and gone)

        num_pieces = -1
        while num_pieces != self._num_pieces:
            num_pieces = self._num_pieces
            if await self._changed.wait_until(is_over, timeout_s=_STALL_S):
                break
        unsent.update(set(self._nodes.joined()) - self._flushed)
        self._report_missing({i: r for i, r in self._find_missing(attempt).items() if i in unsent})

    def _ask_joined(self) -> None:
        for index in self._nodes.joined():  # including nodes that have just reconnected
            if self._requested.get(index) is not self._nodes[index]:
                self._requested[index] = self._nodes[index]
                self._flushed.discard(index)
                self._nodes.order(index, FlushFiles())

    def _find_missing(self, attempt: Attempt) -> dict[int, list[int]]:
        return find_missing_results(attempt, self._status_writer.folder)

    def _report_missing(self, unsent: dict[int, list[int]]) -> None:
        for index, ranks in unsent.items():
            why = f"sent nothing more for {_STALL_S:g} s" if index in self._nodes else "was lost"
            message = render_missing(self._nodes.plan.nodes[index].name, ranks, why)
            self._status_writer.add_condition("warning", names.REASON_RESULT_MISSING, message)

    def _take_flushed(self, index: int, _message: FilesFlushed, _body: bytes) -> None:
        self._flushed.add(index)

    def _count_piece(self, _index: int, _message: FilePiece, _body: bytes) -> None:
        self._num_pieces += 1


def find_missing_results(attempt: Attempt, folder: JobFolder) -> dict[int, list[int]]:
    """Return the ranks of an attempt whose results are missing, by node."""
    if not isinstance(attempt.world.work, Function) or attempt.number < 0:
        return {}
    missing = {
        node.index: [r for r in node.ranks if not folder.result(attempt.number, r).exists()]
        for node in attempt.world.nodes
    }
    return {index: ranks for index, ranks in missing.items() if ranks}


def render_missing(node: str, ranks: list[int], why: str) -> str:
    """Return the message about missing results of a node."""
    which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return f"the result of {which} is missing: {node} {why} before sending it"


_SETTLE_LOST_S = 6.0  # longest time until a silent node counts as lost
_STOP_MARGIN_S = 5.0


class JobLead:
    """Lead of one job, from the first node that joins to the last that stops."""

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        *,
        address: str = "",
        memory: LeadHandover | None = None,
        incarnation: str = "",
        limits: SilenceLimits = DEFAULT_LIMITS,
    ) -> None:
        self._plan = plan
        self._status_writer = status_writer
        self._changed = Changes()
        self.stop = StopRequest()
        self.nodes = NodeTable(
            plan, status_writer, self._changed.set, incarnation=incarnation, limits=limits
        )
        self._worlds = WorldTable(self.nodes)
        self._world = World(-1, plan)  # none yet
        self._stores = Stores(plan, address, self.nodes)
        self._clusters = Clusters(
            self.nodes,
            status_writer,
            address=self._stores.address,
            own_address=address,
            lose=self._lose_cluster,
        )
        self.budget = Budget(plan, memory or LeadHandover())
        self._gathering = Gathering(
            self.nodes, self.budget, self.stop, self._changed, status_writer, self._end_for_time
        )
        self._remaining_files = RemainingFiles(self.nodes, self._changed, status_writer)
        self._ranks = RankHandlers(Attempt(-1, plan), status_writer)
        self._handlers: Handlers = {
            **NodeHandlers(self.nodes, status_writer).handlers,
            **self._ranks.handlers,
            **make_rendezvous_handlers(self._stores, self._clusters),
            **self._remaining_files.handlers,
            WorldCleared: self._take_cleared,
        }

    @property
    def attempt(self) -> Attempt:
        """The current attempt, or the last one."""
        return self._ranks.attempt

    # -- nodes ---------------------------------------------------------------------------------

    def join(
        self, index: int, send: SendBody, about: JoinLead, *, ship: Ship | None = None
    ) -> None:
        """Add a node that has joined, with the state that it kept of the previous lead."""
        self.nodes.join(index, send, about, ship)
        if self.budget.add_reported(about.memory) and about.memory and about.lost_lead:
            self.nodes.one_world.record_lost_lead(about.memory, about.lost_lead)
        self._check_python(index, about.python)
        self._clusters.check()

    def _check_python(self, index: int, python: str) -> None:
        wanted = self._plan.python_minor
        has = ".".join(python.split(".")[:2])
        if wanted and has != wanted:
            message = (
                f"the function is sent by value from Python {wanted}, but {self.nodes.describe(index)} "
                f"runs Python {has}, which cannot run its code. Put it in a module of the project, "
                f"or use an image with Python {wanted} or a client with Python {has}"
            )
            self.end(FailureKind.START_FAILED, message)

    def receive(self, index: int, message: Message, body: bytes = b"") -> None:
        """Process a message from a node."""
        self._handlers[type(message)](index, message, body)
        self._clusters.check()
        self._changed.set()

    def lose(
        self, index: int, why: str = "", *, disconnect: Disconnect = Disconnect.CLOSED
    ) -> None:
        """Record the loss of a node. If it was cut off, its ranks may still run."""
        node = self._worlds.lose(index, why, disconnect)
        if node is not None:
            is_partitioned = disconnect is Disconnect.CUT and self._world.is_partitioned
            note = _render_loss(why, node)
            for outcome in list(self.attempt.lose_node(index, note, is_partitioned=is_partitioned)):
                self._ranks.take(outcome, exited=True)
            self._clusters.lose_node(index)

    def record_exit(self, index: int) -> None:
        """Record that a leaving node's ranks are dead, so that a later lead does not wait for the node."""
        self.lose(index)
        self._forget_gone()

    def record_permanent_exit(self, seat: AgentIdentity, memory: LeadHandover | None) -> None:
        """Record that an unreachable node has ended permanently, with the state of its lead."""
        self.budget.add_reported(memory)
        logger.info("node %s of an earlier attempt has ended permanently", seat.index)
        self.nodes.record_exit(seat)

    def _forget_gone(self) -> None:
        self.budget.memory = self.nodes.one_world.without_gone(self.budget.memory)
        self._send_handover()

    def _send_handover(self) -> None:
        """Send the handover state to every node, in case this lead is lost."""
        self.nodes.send_all(KeepHandover(memory=self.budget.memory))

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Request the end, with `signum` for the ranks. A second one with `now` kills them immediately."""
        attempt = max(0, self.attempt.number)
        verdict = make_job_verdict(self._plan, kind, message, at_s=time.time(), attempt=attempt)
        is_hurried = self.stop.request(verdict, now=now, signum=signum)
        if is_hurried and self._status_writer.status.phase is Phase.STOPPING:
            self._worlds.end(self._world, now=True, signum=self.stop.signal)
        self._changed.set()

    # -- the job -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the whole job. Afterwards the status is final."""
        verdict = await self._run_attempts()
        if verdict is not None:
            self._status_writer.set_verdict(verdict, final=True)
        await self._remaining_files.collect(self.attempt, is_complete=verdict is None)
        if verdict is None:
            message = f"all {self.attempt.num_ranks} ranks returned"
            self._status_writer.set_phase(Phase.SUCCEEDED, names.REASON_ALL_RETURNED, message)
            return
        phase = Phase.CANCELLED if verdict.kind is FailureKind.CANCELLED else Phase.FAILED
        self._status_writer.set_phase(phase, verdict.reason, verdict.message)

    async def _run_attempts(self) -> Verdict | None:
        verdict = await self._gathering.wait() or self._take_over()
        while verdict is None:
            verdict = await self._run_attempt()
            is_last = verdict is None or self.stop.is_requested or self._gathering.is_hopeless
            if verdict is None or is_last or not self._spend(verdict):
                return verdict
            verdict = await self._gathering.wait() or self._take_over()
        return verdict

    def _take_over(self) -> Verdict | None:
        """Continue from a previous lead, if any. Return a verdict if its loss exceeds the budget."""
        if not self.budget.take_over():
            return None
        known = self.budget.memory
        verdict = make_job_verdict(
            self._plan,
            FailureKind.LOST_NODE,
            f"{self._plan.nodes[0].name} was lost, and with it the lead",
            at_s=time.time(),
            attempt=known.attempt,
            node=0,
        )
        self._status_writer.restore(known.history, known.timeline)
        return None if self._spend(verdict) else verdict

    def _spend(self, verdict: Verdict) -> bool:
        """Charge a failure to its budget. Return False if no other attempt is allowed."""
        if not self.budget.spend(verdict):
            return False
        self._status_writer.set_verdict(verdict, final=False)
        return True

    async def leave(self) -> None:
        """End the attempt on all nodes while they are still connected, then record this node as gone."""
        if self.attempt.number < 0:
            return
        self._worlds.end(self._world, now=False, signum=self.stop.signal)
        limit_s = self._plan.grace_s + _STOP_MARGIN_S
        if await self._changed.wait_until(lambda: self._world.is_cleared, timeout_s=limit_s):
            one_world = self.nodes.one_world
            one_world.lose(one_world.own, Disconnect.CLOSED)
            self._forget_gone()

    @property
    def has_lost_nodes(self) -> bool:
        """True if nodes of the last attempt are unreachable and may have another lead."""
        return bool(set(self.budget.memory.seats) - set(self.nodes.seats()))

    # -- an attempt ----------------------------------------------------------------------------

    async def _run_attempt(self) -> Verdict | None:
        plan = self._plan.on_nodes(self.nodes.prepared())
        number = self.budget.begin(self._status_writer.status.timeline, self.nodes.seats())
        self._ranks.attempt = attempt = Attempt(number, plan)
        self._worlds.forget(self._world)
        self._world = World(number, plan)
        self._worlds.add(self._world)
        self._status_writer.start_attempt(number, plan)
        self._send_handover()
        about = f"attempt {number}, {count_noun(plan.num_ranks, 'rank')}"
        self._status_writer.set_phase(Phase.RUNNING, names.REASON_RANKS_RUNNING, about)
        rendezvous = await self._prepare_rendezvous(attempt)
        try:
            if isinstance(rendezvous, Store) or (rendezvous.is_settled and not attempt.has_failure):
                self._start_ranks(number, rendezvous)
            await self._watch(attempt)
            if not attempt.has_failure and not self.stop.is_requested:
                return None
            return await self._stop_attempt(attempt)
        finally:
            if isinstance(rendezvous, Store):
                self._stores.leave(rendezvous)
            self._stores.drop_all()
            # nodes that join while ranks are ending may still be joining the old cluster
            self._clusters.drop_all(close=attempt.has_failure)

    def _start_ranks(self, number: int, rendezvous: RendezvousPoint) -> None:
        place = rendezvous.describe(self._stores.address)
        order = StartAttempt(
            attempt=number,
            nodes=self._world.nodes,
            address=place.address,
            port=place.port,
            has_store=place.has_store,
        )
        if place.secret:
            order = order.replaced(secret=place.secret, members=place.members)
        self._worlds.send(self._world, order)

    async def _open_cluster(self, attempt: Attempt) -> Cluster:
        """Start the framework's own processes on all nodes, before any rank starts."""
        from windlass.spec.node_resources import NodeSizes  # few jobs need it

        plan = self._plan
        sizes = plan.sizes or NodeSizes()
        cluster = self._clusters.open(
            plan.framework, attempt.number, self._world.nodes, sizes, plan.preload
        )

        def is_over() -> bool:
            return cluster.is_settled or self.stop.is_requested or attempt.has_failure

        await self._changed.wait_until(is_over, timeout_s=self.budget.left_s())
        if (failure := cluster.find_error()) is not None:
            node, error = failure
            self._break_off(FailureKind.START_FAILED, error, node)
        return cluster

    def _lose_cluster(self, _cluster: Cluster, kind: FailureKind, what: str, node: int) -> None:
        message = f"{what} on {self.nodes.describe(node)} was lost, and the cluster with it"
        self._break_off(kind, message, node)

    def _break_off(self, kind: FailureKind, message: str, node: int) -> None:
        attempt = self.attempt
        verdict = make_job_verdict(
            self._plan, kind, message, at_s=time.time(), attempt=attempt.number, node=node
        )
        attempt.fail(verdict)

    async def _prepare_rendezvous(self, attempt: Attempt) -> RendezvousPoint:
        """Return the rendezvous: a cluster, a store on node 0, or a port at which rank 0 opens a store."""
        framework = self._plan.framework
        loaded = load_framework(framework)
        if loaded.cluster is not None:
            return await self._open_cluster(attempt)
        if loaded.opens_store(self._plan.preload, attempt.num_ranks):
            self._stores.open(framework, attempt.number)
        store = self._stores.find(framework)
        if store is None:
            return self._stores.reserve_port(attempt.number)

        def is_over() -> bool:
            return store.port is not None or self.stop.is_requested or attempt.has_failure

        await self._changed.wait_until(is_over, timeout_s=self.budget.left_s())
        if store.port is None:
            self._stores.reserve_rank0_port(store)
        return store

    async def _watch(self, attempt: Attempt) -> None:
        """Wait until all ranks have returned, one has failed, or the job must stop."""

        def is_over() -> bool:
            return attempt.is_done or attempt.has_failure or self.stop.is_requested

        def is_over_or_done() -> bool:
            return is_over() or attempt.are_all_done

        await self._changed.wait_until(is_over_or_done, timeout_s=self.budget.left_s())
        if not is_over() and attempt.are_all_done:
            self._worlds.send(self._world, ReleaseRanks())
        if not await self._changed.wait_until(is_over, timeout_s=self.budget.left_s()):
            self._end_for_time()

    def _end_for_time(self) -> None:
        limit = f"{self._plan.timeout_s:g} s"
        self.end(FailureKind.TIMEOUT, f"the job was not done after its time limit of {limit}")

    async def _stop_attempt(self, attempt: Attempt) -> Verdict:
        """End the attempt on all nodes. Writes a final verdict before the slowest rank has ended."""
        world = self._world
        why = self.stop.verdict.message if self.stop.verdict else "a rank failed"
        self._status_writer.set_phase(Phase.STOPPING, self._make_verdict(attempt).reason, why)
        await self._wait_for_cause(attempt, lambda: attempt.are_all_done, self._plan.grace_s)
        self._worlds.end(world, now=self.stop.now, signum=self.stop.signal)
        await self._changed.wait_until(lambda: world.is_cleared, timeout_s=SETTLE_S)
        settle_s = max(self._plan.grace_s, _SETTLE_LOST_S)
        await self._wait_for_cause(attempt, lambda: world.is_cleared, settle_s)
        verdict = self._make_verdict(attempt)
        if not world.is_cleared and (self.stop.is_requested or not self.budget.allows(verdict)):
            self._status_writer.set_verdict(verdict, final=True)
        limit_s = self._plan.grace_s + _STOP_MARGIN_S
        if not await self._changed.wait_until(lambda: world.is_cleared, timeout_s=limit_s):
            for index in set(world.nodes) - world.cleared:
                self.lose(index, "it did not stop its ranks", disconnect=Disconnect.CUT)
        # same cause, but now with the outcomes of the other ranks
        last = self._make_verdict(attempt)
        return last if verdict.rank in (None, last.rank) else verdict

    async def _wait_for_cause(
        self, attempt: Attempt, is_over: Callable[[], bool], limit_s: float
    ) -> None:
        await attempt.wait_for_cause(
            self._changed, lambda: self.stop.is_requested or is_over(), timeout_s=limit_s
        )

    def _make_verdict(self, attempt: Attempt) -> Verdict:
        verdict = self.stop.choose(attempt.make_verdict())
        if verdict is None:
            raise RuntimeError("an attempt was stopped without a reason")
        return verdict

    def _take_cleared(self, index: int, message: WorldCleared, _body: bytes) -> None:
        """Record that a node has no remaining ranks. Ignore reports that arrive before the world is ending.

        Until then, a disconnected node is assumed to be running ranks, even if they have exited.
        """
        if self._world.is_ending:
            self._worlds.take_cleared(index, message)


def _render_loss(why: str, node: JoinedNode) -> str:
    return "; ".join(part for part in (why, f"it was on {node.host}" * bool(node.host)) if part)

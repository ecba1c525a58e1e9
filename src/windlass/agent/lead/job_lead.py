"""The lead: node 0's agent decides for all nodes when an attempt starts, ends and is tried again.

It hears of ranks from nodes (its own included), gives orders to nodes, and writes what it knows to the
status. It touches no process and no socket itself: nodes do the one, links the other.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace

from windlass import names
from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.lead.attempt import Attempt
from windlass.agent.lead.failure import make_job_verdict
from windlass.agent.lead.lead_inbox import LeadInbox
from windlass.agent.lead.missing_nodes import judge_missing
from windlass.agent.lead.owed_results import find_owing, render_missing
from windlass.agent.lead.roster import JoinedNode
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.node.master_port import hold_port
from windlass.agent.silence_limits import SIGHT, Parting, SilenceLimits
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import LeadHandover, choose_memory
from windlass.wire.message import Message
from windlass.wire.messages.jobs import (
    FlushFiles,
    KeepHandover,
    OpenAttemptStore,
    ReleaseRanks,
    StartAttempt,
)
from windlass.wire.states import MomentName
from windlass.wire.status import FailureKind, Phase, Verdict

logger = logging.getLogger(__name__)

_SETTLE_S = 0.3  # how long a verdict waits for a failure that came earlier but is heard of later
_SETTLE_LOST_S = 6.0  # a silent node takes so long to be missed
_STOP_MARGIN_S = 5.0
_STALL_S = 60.0  # how long nodes may send nothing of what their ranks left
_LOOPBACK = "127.0.0.1"


class Lead(LeadInbox):
    """One job, from the first node that joins to the last that stops."""

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        *,
        address: str = "",
        memory: LeadHandover | None = None,
        incarnation: str = "",
        sight: SilenceLimits = SIGHT,
    ) -> None:
        super().__init__(plan, status_writer, incarnation=incarnation, sight=sight)
        self._address = plan.master_addr or address or _LOOPBACK
        self._memory = memory or LeadHandover()

    # -- the job -------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole job; afterwards the status is final."""
        verdict = await self._run_attempts()
        if verdict is not None:
            self._status_writer.set_verdict(verdict, final=True)
        await self._flush(is_complete=verdict is None)
        if verdict is None:
            message = f"all {self._attempt.num_ranks} ranks returned"
            self._status_writer.set_phase(Phase.SUCCEEDED, names.REASON_ALL_RETURNED, message)
            return
        phase = Phase.CANCELLED if verdict.kind is FailureKind.CANCELLED else Phase.FAILED
        self._status_writer.set_phase(phase, verdict.reason, verdict.message)

    async def _run_attempts(self) -> Verdict | None:
        verdict = await self._gather() or self._take_over()
        while verdict is None:
            verdict = await self._run_attempt(self._memory.attempt + 1)
            is_last = verdict is None or self._stop is not None or self._is_hopeless()
            if verdict is None or is_last or not self._spend(verdict):
                return verdict
            verdict = await self._gather() or self._take_over()
        return verdict

    async def _gather(self) -> Verdict | None:
        """Wait until there are nodes enough for an attempt; a verdict when there never will be."""
        self._status_writer.set_phase(
            Phase.STARTING,
            names.REASON_WAITING_FOR_NODES,
            f"waiting for {len(self._roster.missing())} node(s) of {len(self._plan.nodes)}",
        )

        def is_over() -> bool:
            is_ready = self._roster.is_complete and self._may_start()
            return is_ready or self._is_hopeless() or self._stop is not None

        def is_enough() -> bool:
            return (self._roster.is_enough and self._may_start()) or is_over()

        join_s, left_s = self._plan.join_timeout_s, self._left_s()
        timeout_s = join_s if left_s is None else min(join_s, left_s)
        first_s = min(names.FEWER_AFTER_S, timeout_s) if self._is_elastic else timeout_s
        if not await self._changed.until(is_over, timeout_s=first_s) and self._is_elastic:
            await self._changed.until(is_enough, timeout_s=timeout_s - first_s)
        is_late = not (self._roster.is_enough and self._may_start())
        if timeout_s < join_s and is_late and not self._is_hopeless():
            self._end_for_time()
        if self._stop is not None:
            return self._stop
        if is_late:
            return self._judge_missing()
        self._status_writer.mark(MomentName.NODES_JOINED)
        return None

    @property
    def _is_elastic(self) -> bool:
        return self._plan.min_nodes < len(self._plan.nodes)

    def _may_start(self) -> bool:
        """Whether no other world of this job can be there; if one might, the status says why."""
        obstacle = self._find_obstacle()
        message = f"{obstacle}; the job ends if that lasts for {self._plan.join_timeout_s:g} s"
        if obstacle and self._status_writer.status.conditions[-1].message != message:
            self._status_writer.set_phase(Phase.STARTING, names.REASON_ONE_WORLD, message)
        return not obstacle

    def _find_obstacle(self) -> str:
        is_complete, is_elastic = self._roster.is_complete, self._is_elastic
        return self._one_world.find_obstacle(
            self._recall(), self._roster.seats(), is_complete=is_complete, is_elastic=is_elastic
        )

    def _recall(self) -> LeadHandover:
        """What is known of the last attempt, be it this lead's or another's."""
        if self._attempt.number < 0:
            return choose_memory(self._told, own=self._memory)
        return max((self._memory, *self._told), key=lambda memory: memory.attempt)

    def _is_hopeless(self) -> bool:
        return bool(self._roster.lost) and self._plan.node_restarts == 0

    def _judge_missing(self) -> Verdict:
        obstacle = self._find_obstacle() if self._roster.is_enough else ""
        return judge_missing(
            self._plan,
            self._roster,
            obstacle=obstacle,
            is_hopeless=self._is_hopeless(),
            has_begun=self._attempt.number >= 0,
        )

    def _take_over(self) -> Verdict | None:
        """Go on where another lead stopped, if there was one; a verdict when its loss was one too many."""
        known = self._recall()
        self._told.clear()
        if known.attempt < 0 or known is self._memory:
            return None
        verdict = make_job_verdict(
            self._plan,
            FailureKind.LOST_NODE,
            f"{self._plan.nodes[0].name} was lost, and with it the lead",
            at_s=time.time(),
            attempt=known.attempt,
            node=0,
        )
        self._memory = known
        self._status_writer.restore(known.history, known.timeline)
        return None if self._spend(verdict) else verdict

    def _spend(self, verdict: Verdict) -> bool:
        """Take what failed out of its budget; whether there is another attempt."""
        if not self._has_budget(verdict):
            return False
        memory = self._memory
        if verdict.kind is FailureKind.LOST_NODE:
            memory = replace(memory, losses_used=memory.losses_used + 1)
        else:
            memory = replace(memory, restarts_used=memory.restarts_used + 1)
        logger.info("attempt %s: %s", verdict.attempt, verdict.message)
        self._memory = replace(memory, history=(*memory.history, verdict))
        self._status_writer.set_verdict(verdict, final=False)
        return True

    def _has_budget(self, verdict: Verdict) -> bool:
        if verdict.kind is FailureKind.LOST_NODE:
            return self._memory.losses_used < self._plan.node_restarts
        return self._memory.restarts_used < self._plan.restarts

    # -- an attempt ----------------------------------------------------------------------------

    async def _run_attempt(self, number: int) -> Verdict | None:
        world = self._plan.on_nodes(self._roster.prepared())
        self._attempt = Attempt(number, world)
        self._is_cut = self._is_stopping = False
        self._status_writer.start_attempt(number, world)
        self._remember(number)
        self._status_writer.set_phase(
            Phase.RUNNING,
            names.REASON_RANKS_RUNNING,
            f"attempt {number}, {world.num_ranks} rank(s)",
        )
        port = await self._open_store()
        held = None if port else hold_port(self._plan.master_port)
        try:
            self._order(
                StartAttempt(
                    attempt=number,
                    nodes=[node.index for node in world.nodes],
                    address=self._address,
                    port=held.number if held else port,
                    has_store=held is None,
                )
            )
            await self._watch()
            if not self._attempt.has_failure and self._stop is None:
                return None
            return await self._stop_attempt()
        finally:
            if held:
                held.release()

    def _remember(self, number: int) -> None:
        """Have every node keep what this lead knows, in case it is lost."""
        deadline = self._memory.deadline_at_s
        if deadline is None and self._plan.timeout_s is not None:
            deadline = time.time() + self._plan.timeout_s
        timeline = self._status_writer.status.timeline
        self._memory = replace(
            self._memory,
            attempt=number,
            deadline_at_s=deadline,
            timeline=timeline,
            seats=tuple(self._roster.seats()),
        )
        self._have_remembered()

    def _have_remembered(self) -> None:
        self._tell_all(KeepHandover(memory=self._memory))

    def part(self, index: int) -> None:
        """A node has left for good: a lead that comes after this one need not wait for it."""
        super().part(index)
        self._memory = self._one_world.without_gone(self._memory)
        self._have_remembered()

    async def leave(self) -> None:
        """End the attempt everywhere while its nodes still hear their lead, then leave for good."""
        if self._attempt.number < 0:
            return
        self._is_stopping = True
        self._order(self._make_stop(now=False))
        limit_s = self._plan.grace_s + _STOP_MARGIN_S
        if await self._changed.until(self._has_stopped, timeout_s=limit_s):
            self._one_world.lose(self._one_world.own, Parting.CLOSED)
            self._memory = self._one_world.without_gone(self._memory)
            self._have_remembered()

    @property
    def has_lost_nodes(self) -> bool:
        """Whether nodes of the last attempt are out of sight, and may have another lead."""
        return bool(set(self._memory.seats) - set(self._roster.seats()))

    async def _open_store(self) -> int:
        """The port of this attempt's store; 0 when rank 0 must open one itself."""
        store = load_framework(self._plan.framework).store
        is_wanted = store is not None and store.is_wanted(
            self._plan.preload, self._attempt.num_ranks
        )
        if not is_wanted or 0 not in self._roster:
            return 0
        number, port = self._attempt.number, self._plan.master_port
        order = OpenAttemptStore(attempt=number, address=self._address, port=port)
        self._roster[0].send(order)
        await self._changed.until(
            lambda: (
                self._attempt.store_port is not None
                or self._stop is not None
                or self._attempt.has_failure
            ),
            timeout_s=self._left_s(),
        )
        return self._attempt.store_port or 0

    def _left_s(self) -> float | None:
        """How much of the job's time limit is left."""
        deadline = self._memory.deadline_at_s
        return None if deadline is None else max(0.0, deadline - time.time())

    async def _watch(self) -> None:
        """Until all ranks have returned, one has failed, or somebody ends the job."""

        attempt = self._attempt

        def is_over() -> bool:
            return attempt.is_done or attempt.has_failure or self._stop is not None

        def is_over_or_done() -> bool:
            return is_over() or attempt.are_all_done

        await self._changed.until(is_over_or_done, timeout_s=self._left_s())
        if not is_over() and attempt.are_all_done:
            self._order(ReleaseRanks())
        if not await self._changed.until(is_over, timeout_s=self._left_s()):
            self._end_for_time()

    def _end_for_time(self) -> None:
        limit = f"{self._plan.timeout_s:g} s"
        self.end(FailureKind.TIMEOUT, f"the job was not done after its time limit of {limit}")

    async def _stop_attempt(self) -> Verdict:
        """End the attempt everywhere at once; the verdict does not wait for the slowest rank."""
        why = self._stop.message if self._stop else "a rank failed"
        self._status_writer.set_phase(Phase.STOPPING, self._make_verdict().reason, why)
        await self._hear_cause(lambda: self._attempt.are_all_done, timeout_s=self._plan.grace_s)
        self._is_stopping = True
        self._order(self._make_stop(now=self._now))
        await self._changed.until(self._has_stopped, timeout_s=_SETTLE_S)
        await self._hear_cause(self._has_stopped, timeout_s=max(self._plan.grace_s, _SETTLE_LOST_S))
        verdict = self._make_verdict()
        if not self._has_stopped() and not (self._stop is None and self._has_budget(verdict)):
            self._status_writer.set_verdict(verdict, final=True)
        if not await self._changed.until(
            self._has_stopped, timeout_s=self._plan.grace_s + _STOP_MARGIN_S
        ):
            for index in [i for i in self._roster.here() if i not in self._attempt.stopped]:
                self.lose(index, "it did not stop its ranks", parting=Parting.CUT)
        last = self._make_verdict()  # the same, but what became of the others is known by now
        return last if verdict.rank in (None, last.rank) else verdict

    async def _hear_cause(self, is_in_vain: Callable[[], bool], *, timeout_s: float) -> None:
        """While all that failed have only lost a peer, wait for those that failed before them.

        First before anything is stopped: a rank that is stopped now could not say any more what it raised.
        """

        def is_over() -> bool:
            is_known = not self._attempt.has_only_consequences
            return is_known or self._stop is not None or is_in_vain()

        await self._changed.until(is_over, timeout_s=timeout_s)

    def _has_stopped(self) -> bool:
        return all(
            index in self._attempt.stopped
            for index in self._roster.here()
            if self._attempt.takes_part(index)
        )

    def _make_verdict(self) -> Verdict:
        verdict = self._attempt.make_verdict()
        if self._stop is not None and (verdict is None or verdict.at_s > self._stop.at_s):
            return self._stop
        if verdict is None:
            raise RuntimeError("an attempt was stopped without a reason")
        return verdict

    # -- orders --------------------------------------------------------------------------------

    async def _flush(self, *, is_complete: bool) -> None:
        """Wait for what nodes have still to send, logs and results of their ranks, while anything comes.

        Where all ranks have returned, a node that is gone and owes a result may come back with it.
        """
        self._flushed.clear()
        asked: dict[int, JoinedNode] = {}
        owing: set[int] = set()

        def is_over() -> bool:
            for index in self._roster.here():  # also one that has just come back
                if asked.get(index) is not self._roster[index]:
                    asked[index] = self._roster[index]
                    self._flushed.discard(index)
                    self._roster[index].send(FlushFiles())
            gone = {index for index in self._find_owing() if index not in self._roster}
            owing.update(gone if is_complete else ())
            return self._flushed.issuperset(self._roster.here()) and not (is_complete and gone)

        num_pieces = -1
        while num_pieces != self._num_pieces:
            num_pieces = self._num_pieces
            if await self._changed.until(is_over, timeout_s=_STALL_S):
                break
        owing.update(set(self._roster.here()) - self._flushed)
        self._tell_missing({i: r for i, r in self._find_owing().items() if i in owing})

    def _find_owing(self) -> dict[int, list[int]]:
        return find_owing(self._attempt, self._status_writer.folder)

    def _tell_missing(self, owing: dict[int, list[int]]) -> None:
        for index, ranks in owing.items():
            why = f"sent nothing more for {_STALL_S:g} s" if index in self._roster else "was lost"
            message = render_missing(self._plan.nodes[index].name, ranks, why)
            self._status_writer.add_condition("warning", names.REASON_RESULT_MISSING, message)

    def _order(self, message: Message) -> None:
        for index in self._roster.here():
            if self._attempt.takes_part(index):
                self._roster[index].send(message)

    def _tell_all(self, message: Message) -> None:
        for index in self._roster.here():
            self._roster[index].send(message)

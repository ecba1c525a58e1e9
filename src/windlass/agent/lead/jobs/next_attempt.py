"""Conditions for the next attempt of a job: remaining budget and enough nodes.

`Budget` counts attempts and failures. `Gathering` waits for nodes, reports what it waits for, and returns
a verdict if there will never be enough. `agent.lead.jobs.job_lead` starts and ends attempts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from windlass import names
from windlass.agent.lead.attempt import StopRequest
from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.world import Changes
from windlass.errors import count_noun
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import AgentIdentity, LeadHandover, choose_memory
from windlass.wire.states import MomentName
from windlass.wire.status import FailureKind, Moment, Phase, Verdict, make_job_verdict

logger = logging.getLogger(__name__)


class Budget:
    """Counts of attempts and failures, under this lead and earlier ones.

    The counts used so far are in `memory`, which is handed to the next lead.
    """

    def __init__(self, plan: Plan, memory: LeadHandover) -> None:
        self._plan = plan
        self.memory = memory
        self.has_begun = False  # True once this lead has started an attempt
        self.reported: list[LeadHandover] = []  # states of earlier leads, from nodes
        # the deadline by the wall clock and by the monotonic clock
        self._deadline: tuple[float, float] | None = None

    def add_reported(self, memory: LeadHandover | None) -> bool:
        """Keep a node's reported state. Return False if it is missing or not newer than this lead's own."""
        own = self.memory.attempt if self.has_begun else -1
        if memory is None or memory.attempt <= own:
            return False
        self.reported.append(memory)
        return True

    def recall(self) -> LeadHandover:
        """Return the state of the last attempt, under this lead or another."""
        if not self.has_begun:
            return choose_memory(self.reported, own=self.memory)
        return max((self.memory, *self.reported), key=lambda memory: memory.attempt)

    def take_over(self) -> bool:
        """Continue from another lead. Return False unless another lead got further than this one."""
        known = self.recall()
        self.reported.clear()
        if known.attempt < 0 or known is self.memory:
            return False
        self.memory = known
        return True

    def begin(self, timeline: tuple[Moment, ...], seats: Iterable[AgentIdentity]) -> int:
        """Record the start of an attempt on these nodes and return its number."""
        self.has_begun = True
        deadline = self.memory.deadline_at_s
        if deadline is None and self._plan.timeout_s is not None:
            deadline = time.time() + self._plan.timeout_s
        self.memory = replace(
            self.memory,
            attempt=self.memory.attempt + 1,
            deadline_at_s=deadline,
            timeline=timeline,
            seats=tuple(seats),
        )
        self.left_s()  # fixes the monotonic deadline, so that later wall-clock jumps have no effect
        return self.memory.attempt

    def spend(self, verdict: Verdict) -> bool:
        """Charge a failure to its budget. Return False if the budget allows no other attempt."""
        if not self.allows(verdict):
            return False
        memory = self.memory
        if verdict.kind is FailureKind.LOST_NODE:
            memory = replace(memory, losses_used=memory.losses_used + 1)
        else:
            memory = replace(memory, restarts_used=memory.restarts_used + 1)
        logger.info("attempt %s: %s", verdict.attempt, verdict.message)
        self.memory = replace(memory, history=(*memory.history, verdict))
        return True

    def allows(self, verdict: Verdict) -> bool:
        """Return whether the budget allows another attempt after a failure."""
        if verdict.kind is FailureKind.LOST_NODE:
            return self.memory.losses_used < self._plan.node_restarts
        return self.memory.restarts_used < self._plan.restarts

    def left_s(self) -> float | None:
        """Return the remaining seconds of the job's time limit, or None without a limit.

        Leads on different machines share only the wall clock. From the moment a lead learns of the deadline,
        it measures the remaining time with its monotonic clock.
        """
        at_s = self.memory.deadline_at_s
        if at_s is None:
            return None
        if self._deadline is None or self._deadline[0] != at_s:
            self._deadline = at_s, time.monotonic() + at_s - time.time()
        return max(0.0, self._deadline[1] - time.monotonic())


class Gathering:
    """Wait for enough nodes before each attempt. Calls `end_for_time` after the job's time limit."""

    def __init__(
        self,
        nodes: NodeTable,
        budget: Budget,
        stop: StopRequest,
        changed: Changes,
        status_writer: StatusWriter,
        end_for_time: Callable[[], None],
    ) -> None:
        self._end_for_time = end_for_time
        self._plan = nodes.plan
        self._nodes = nodes
        self._budget = budget
        self._stop = stop
        self._changed = changed
        self._status_writer = status_writer

    async def wait(self) -> Verdict | None:
        """Wait for enough nodes for an attempt. Return a verdict if the wait times out."""
        missing = f"{len(self._nodes.missing())} of {count_noun(len(self._plan.nodes), 'node')}"
        self._status_writer.set_phase(
            Phase.STARTING, names.REASON_WAITING_FOR_NODES, f"waiting for {missing}"
        )
        join_s, left_s = self._plan.join_timeout_s, self._budget.left_s()
        timeout_s = join_s if left_s is None else min(join_s, left_s)
        first_s = min(names.FEWER_AFTER_S, timeout_s) if self._is_elastic else timeout_s
        if (
            not await self._changed.wait_until(self._is_over, timeout_s=first_s)
            and self._is_elastic
        ):
            await self._changed.wait_until(self._is_enough, timeout_s=timeout_s - first_s)
        is_late = not (self._nodes.is_enough and self._may_start())
        if is_late and timeout_s < join_s and not self.is_hopeless:
            self._end_for_time()
        if self._stop.is_requested:
            return self._stop.verdict
        if is_late:
            return self._judge_missing()
        self._status_writer.mark(MomentName.NODES_JOINED)
        return None

    def _is_over(self) -> bool:
        is_ready = self._nodes.is_complete and self._may_start()
        return is_ready or self.is_hopeless or self._stop.is_requested

    def _is_enough(self) -> bool:
        return (self._nodes.is_enough and self._may_start()) or self._is_over()

    @property
    def _is_elastic(self) -> bool:
        return self._plan.min_nodes < len(self._plan.nodes)

    @property
    def is_hopeless(self) -> bool:
        """True if a node is lost and will not be replaced."""
        return bool(self._nodes.lost) and self._plan.node_restarts == 0

    def _may_start(self) -> bool:
        """Return whether no other world of this job can exist. Otherwise report why in the status."""
        obstacle = self._find_obstacle()
        message = f"{obstacle}. The job ends if this lasts for {self._plan.join_timeout_s:g} s"
        if obstacle and self._status_writer.status.conditions[-1].message != message:
            self._status_writer.set_phase(Phase.STARTING, names.REASON_ONE_WORLD, message)
        return not obstacle

    def _find_obstacle(self) -> str:
        return self._nodes.one_world.find_obstacle(
            self._budget.recall(),
            self._nodes.seats(),
            is_complete=self._nodes.is_complete,
            is_elastic=self._is_elastic,
        )

    def _judge_missing(self) -> Verdict:
        """Return the verdict that the joined nodes are not enough, with the reason."""
        plan, nodes = self._plan, self._nodes
        timeout = f"within {plan.join_timeout_s:g} s"
        missing = nodes.missing()
        if self.is_hopeless:
            missing = sorted(nodes.lost)
            kind, what = FailureKind.LOST_NODE, "was lost before the job could start"
        elif nodes.is_enough and (obstacle := self._find_obstacle()):
            why = f"no attempt could start {timeout}: {obstacle}"
            return make_job_verdict(plan, FailureKind.LOST_NODE, why, at_s=time.time())
        elif self._budget.has_begun:
            kind, what = FailureKind.LOST_NODE, f"was lost and did not come back {timeout}"
        elif missing:
            kind, what = FailureKind.START_FAILED, f"did not join {timeout}"
        else:
            missing = sorted(set(nodes.joined()) - set(nodes.prepared()))
            kind, what = FailureKind.START_FAILED, f"did not get the code {timeout}"
        late = ", ".join(plan.nodes[index].name for index in missing)
        return make_job_verdict(plan, kind, f"{late} {what}", at_s=time.time(), node=missing[0])

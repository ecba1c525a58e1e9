"""How many more attempts a job has, and how much time: kept by this lead, and by all nodes for the next one.

Arithmetic on what is remembered. When an attempt starts or ends is `agent.lead.job_lead`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace

from windlass.plan.plan import Plan
from windlass.wire.lead_handover import LeadHandover, Seat, choose_memory
from windlass.wire.status import FailureKind, Moment, Verdict

logger = logging.getLogger(__name__)


class Budget:
    """Attempts so far, of this lead and of those before it."""

    def __init__(self, plan: Plan, memory: LeadHandover) -> None:
        self._plan = plan
        self.memory = memory
        self.has_begun = False  # an attempt, under this lead
        self.told: list[LeadHandover] = []  # what nodes remember of an earlier lead
        self._deadline: tuple[float, float] | None = (
            None  # by the wall clock, and by the monotonic one
        )

    def hear(self, memory: LeadHandover | None) -> bool:
        """What a node remembers; whether it is not what this lead has told itself."""
        own = self.memory.attempt if self.has_begun else -1
        if memory is None or memory.attempt <= own:
            return False
        self.told.append(memory)
        return True

    def recall(self) -> LeadHandover:
        """What is known of the last attempt, be it this lead's or another's."""
        if not self.has_begun:
            return choose_memory(self.told, own=self.memory)
        return max((self.memory, *self.told), key=lambda memory: memory.attempt)

    def take_over(self) -> bool:
        """Go on where another lead stopped; False when there was none, or none that got further."""
        known = self.recall()
        self.told.clear()
        if known.attempt < 0 or known is self.memory:
            return False
        self.memory = known
        return True

    def begin(self, timeline: tuple[Moment, ...], seats: Iterable[Seat]) -> int:
        """Another attempt begins, on these nodes; its number."""
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
        self.left_s()  # from now on, jumps of the wall clock do not count
        return self.memory.attempt

    def spend(self, verdict: Verdict) -> bool:
        """Take what failed out of its budget; whether there is another attempt."""
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
        """Whether another attempt may follow what failed."""
        if verdict.kind is FailureKind.LOST_NODE:
            return self.memory.losses_used < self._plan.node_restarts
        return self.memory.restarts_used < self._plan.restarts

    def left_s(self) -> float | None:
        """Return how much of the job's time limit is left; None without a limit.

        Leads on different machines share the wall clock only. Each counts by its monotonic clock from the
        moment when it learns of the deadline.
        """
        at_s = self.memory.deadline_at_s
        if at_s is None:
            return None
        if self._deadline is None or self._deadline[0] != at_s:
            self._deadline = at_s, time.monotonic() + at_s - time.time()
        return max(0.0, self._deadline[1] - time.monotonic())

"""Waiting for nodes enough for an attempt, and the verdict when there never will be.

Looks at the nodes and says what it waits for; starts nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from windlass import names
from windlass.agent.changes import Changes
from windlass.agent.lead.budget import Budget
from windlass.agent.lead.failure import make_job_verdict
from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.stop_request import StopRequest
from windlass.wire.states import MomentName
from windlass.wire.status import FailureKind, Phase, Verdict


class Gathering:
    """Before each attempt. `end_for_time` ends the job: its time limit is over."""

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
        """Until there are nodes enough for an attempt; a verdict when there never will be."""
        missing = f"{len(self._nodes.missing())} node(s) of {len(self._plan.nodes)}"
        self._status_writer.set_phase(
            Phase.STARTING, names.REASON_WAITING_FOR_NODES, f"waiting for {missing}"
        )
        join_s, left_s = self._plan.join_timeout_s, self._budget.left_s()
        timeout_s = join_s if left_s is None else min(join_s, left_s)
        first_s = min(names.FEWER_AFTER_S, timeout_s) if self._is_elastic else timeout_s
        if not await self._changed.until(self._is_over, timeout_s=first_s) and self._is_elastic:
            await self._changed.until(self._is_enough, timeout_s=timeout_s - first_s)
        is_late = not (self._nodes.is_enough and self._may_start())
        if is_late and timeout_s < join_s and not self.is_hopeless:
            self._end_for_time()
        if self._stop.is_asked:
            return self._stop.verdict
        if is_late:
            return self._judge_missing()
        self._status_writer.mark(MomentName.NODES_JOINED)
        return None

    def _is_over(self) -> bool:
        is_ready = self._nodes.is_complete and self._may_start()
        return is_ready or self.is_hopeless or self._stop.is_asked

    def _is_enough(self) -> bool:
        return (self._nodes.is_enough and self._may_start()) or self._is_over()

    @property
    def _is_elastic(self) -> bool:
        return self._plan.min_nodes < len(self._plan.nodes)

    @property
    def is_hopeless(self) -> bool:
        """Whether a node is gone, and none will come in its place."""
        return bool(self._nodes.lost) and self._plan.node_restarts == 0

    def _may_start(self) -> bool:
        """Whether no other world of this job can be there; if one might, the status says why."""
        obstacle = self._find_obstacle()
        message = f"{obstacle}; the job ends if that lasts for {self._plan.join_timeout_s:g} s"
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
        """Why the nodes that are here are not enough."""
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
            missing = sorted(set(nodes.here()) - set(nodes.prepared()))
            kind, what = FailureKind.START_FAILED, f"did not get the code {timeout}"
        who = ", ".join(plan.nodes[index].name for index in missing)
        return make_job_verdict(plan, kind, f"{who} {what}", at_s=time.time(), node=missing[0])

"""The lead: node 0's agent decides for all nodes when an attempt starts, ends and is tried again.

It hears of ranks from nodes (its own included), gives orders to nodes, and writes what it knows on the
board. It touches no process and no socket itself: nodes do the one, links the other.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from windlass import names
from windlass.agent.board import Board
from windlass.agent.failure import make_job_verdict, make_verdict
from windlass.agent.link import Send
from windlass.agent.node import read_outcome
from windlass.agent.port import hold_port
from windlass.plan.plan import Plan
from windlass.wire.results import Outcome
from windlass.wire.status import FailureKind, Phase, Verdict

logger = logging.getLogger(__name__)

_SETTLE_S = 0.3  # how long a verdict waits for a failure that came earlier but is heard of later
_STOP_MARGIN_S = 5.0
_LOOPBACK = "127.0.0.1"


@dataclass(slots=True)
class _Attempt:
    """What has been heard of one attempt."""

    number: int
    outcomes: dict[int, Outcome] = field(default_factory=dict)
    exited: set[int] = field(default_factory=set)
    stopped: set[int] = field(default_factory=set)
    running: set[int] = field(default_factory=set)
    store_port: int | None = None

    def add(self, outcome: Outcome, *, exited: bool) -> None:
        known = self.outcomes.get(outcome.rank)
        if (
            known is None or not known.is_failure
        ):  # what a rank said itself is not overwritten by its exit
            self.outcomes[outcome.rank] = outcome
        if exited:
            self.exited.add(outcome.rank)

    @property
    def has_failure(self) -> bool:
        return any(outcome.is_failure for outcome in self.outcomes.values())


class Lead:
    """One job, from the first node that joins to the last that stops."""

    def __init__(self, plan: Plan, board: Board) -> None:
        self._plan = plan
        self._board = board
        self._nodes: dict[int, Send] = {}
        self._lost: set[int] = set()
        self._ready: set[int] = set()
        self._attempt = _Attempt(0)
        self._stop: Verdict | None = None  # somebody ended the job: cancel, timeout, lease
        self._now = False
        self._changed = asyncio.Event()
        self._deadline_s: float | None = None

    # -- what nodes and clients say ------------------------------------------------------------

    def join(self, index: int, send: Send, *, pid: int, python: str) -> None:
        """A node is there."""
        self._nodes[index] = send
        self._board.set_node(index, state="joined", pid=pid, python=python)
        self._changed.set()

    def lose(self, index: int) -> None:
        """A node is gone, and its ranks with it."""
        if self._nodes.pop(index, None) is None:
            return
        self._lost.add(index)
        self._board.set_node(index, state="lost")
        for rank in self._plan.nodes[index].ranks:
            if rank not in self._attempt.exited:
                outcome = Outcome(
                    rank=rank, attempt=self._attempt.number, state="lost", at_s=time.time()
                )
                self._take_outcome(outcome, exited=True)
        self._changed.set()

    def end(self, kind: FailureKind, message: str, *, now: bool = False) -> None:
        """Somebody wants the job to end; asking a second time may make it end at once."""
        if self._stop is None:
            self._stop = make_job_verdict(
                self._plan, kind, message, at_s=time.time(), attempt=self._attempt.number
            )
        if now and not self._now:
            self._now = True
            if self._board.status.phase is Phase.STOPPING:
                self._order({"type": "stop", "now": True})
        self._changed.set()

    def receive(self, index: int, message: dict[str, Any]) -> None:
        """Something a node says."""
        kind = message["type"]
        if kind == "outcome":
            self._take_outcome(read_outcome(message), exited=message["exited"])
        elif kind == "started":
            self._board.set_rank(message["rank"], pid=message["pid"], state="running")
        elif kind == "running":
            self._take_running(message)
        elif kind == "report":
            self._board.report(message)
        elif kind == "stopped" and message["attempt"] == self._attempt.number:
            self._attempt.stopped.add(index)
        elif kind == "ready":
            self._take_ready(index, message)
        elif kind == "store" and message["attempt"] == self._attempt.number:
            self._attempt.store_port = message["port"]
        elif kind == "trouble":
            self._board.add_condition("warning", message["reason"], message["message"])
        self._changed.set()

    def _take_running(self, message: dict[str, Any]) -> None:
        self._attempt.running.add(message["rank"])
        if len(self._attempt.running) == self._plan.num_ranks:
            self._board.mark("ranks running", message["at_s"])

    def _take_outcome(self, outcome: Outcome, *, exited: bool) -> None:
        if outcome.attempt != self._attempt.number:
            return
        self._attempt.add(outcome, exited=exited)
        if exited or outcome.is_failure:
            self._board.set_rank(outcome.rank, state=self._attempt.outcomes[outcome.rank].state)

    def _take_ready(self, index: int, message: dict[str, Any]) -> None:
        if message["is_complete"]:
            self._ready.add(index)
            self._board.set_node(index, state="ready")
        if len(self._ready) == len(self._plan.nodes):
            self._board.mark("imports done")
        if message["culprit"]:
            self._board.add_condition(
                "warning",
                names.REASON_FORK_UNSAFE,
                f"importing {message['culprit']} started {message['num_threads'] - 1} thread(s): "
                f"ranks are spawned, not forked; leave it out of --preload to fork again",
            )
        for name, why in message["missing"].items():
            self._board.add_condition(
                "warning", names.REASON_IMPORTING, f"{name} could not be preloaded: {why}"
            )

    # -- the job -------------------------------------------------------------------------------

    async def run(self) -> None:
        """The whole job; afterwards the board is final."""
        self._board.set_phase(
            Phase.STARTING,
            names.REASON_WAITING_FOR_NODES,
            f"waiting for {len(self._plan.nodes)} node(s)",
        )
        verdict = await self._join_all() or await self._run_attempts()
        if verdict is None:
            self._board.set_phase(
                Phase.SUCCEEDED,
                names.REASON_ALL_RETURNED,
                f"all {self._plan.num_ranks} ranks returned",
            )
            return
        phase = Phase.CANCELLED if verdict.kind is FailureKind.CANCELLED else Phase.FAILED
        self._board.set_verdict(verdict, final=True)
        self._board.set_phase(phase, _reason(verdict), verdict.message)

    async def _join_all(self) -> Verdict | None:
        num_nodes = len(self._plan.nodes)
        await self._until(
            lambda: len(self._nodes) == num_nodes or bool(self._lost) or self._stop is not None,
            timeout_s=self._plan.join_timeout_s,
        )
        if self._stop is not None:
            return self._stop
        missing = [node for node in self._plan.nodes if node.index not in self._nodes]
        if not missing:
            self._board.mark("nodes joined")
            return None
        if self._lost:
            missing = [node for node in missing if node.index in self._lost]
            kind, what = FailureKind.LOST_NODE, "was lost before the job could start"
        else:
            kind = FailureKind.START_FAILED
            what = f"did not join within {self._plan.join_timeout_s:g} s"
        message = f"{', '.join(node.name for node in missing)} {what}"
        return make_job_verdict(self._plan, kind, message, at_s=time.time(), node=missing[0].index)

    async def _run_attempts(self) -> Verdict | None:
        if self._plan.timeout_s is not None:
            self._deadline_s = asyncio.get_running_loop().time() + self._plan.timeout_s
        attempt = 0
        while True:
            verdict = await self._run_attempt(attempt)
            if (
                verdict is None
                or self._stop is not None
                or attempt >= self._plan.restarts
                or self._lost
            ):
                return verdict
            logger.info("attempt %s: %s", attempt, verdict.message)
            self._board.set_verdict(verdict, final=False)
            attempt += 1

    async def _run_attempt(self, number: int) -> Verdict | None:
        self._attempt = _Attempt(number)
        self._board.start_attempt(number)
        self._board.set_phase(
            Phase.RUNNING,
            names.REASON_RANKS_RUNNING,
            f"attempt {number} of {self._plan.num_ranks} rank(s)",
        )
        port = await self._open_store()
        held = None if port else hold_port()
        try:
            self._order(
                {
                    "type": "start",
                    "attempt": number,
                    "address": self._plan.master_addr or _LOOPBACK,
                    "port": held.number if held else port,
                    "has_store": held is None,
                }
            )
            await self._watch()
            if not self._attempt.has_failure and self._stop is None:
                return None
            return await self._stop_attempt()
        finally:
            if held:
                held.release()

    async def _open_store(self) -> int:
        """The port of this attempt's store; 0 when rank 0 must open one itself."""
        if "torch" not in self._plan.preload or 0 not in self._nodes:
            return 0
        order = {"type": "open_store", "attempt": self._attempt.number, "port": 0}
        self._nodes[0]({**order, "address": self._plan.master_addr or _LOOPBACK})
        await self._until(
            lambda: (
                self._attempt.store_port is not None or self._stop is not None or bool(self._lost)
            ),
            timeout_s=self._left_s(),
        )
        return self._attempt.store_port or 0

    def _left_s(self) -> float | None:
        """How much of the job's time limit is left."""
        if self._deadline_s is None:
            return None
        return max(0.0, self._deadline_s - asyncio.get_running_loop().time())

    async def _watch(self) -> None:
        """Until all ranks have returned, one has failed, or somebody ends the job."""

        def is_over() -> bool:
            done = len(self._attempt.exited) == self._plan.num_ranks
            return done or self._attempt.has_failure or self._stop is not None

        if not await self._until(is_over, timeout_s=self._left_s()):
            limit = f"{self._plan.timeout_s:g} s"
            self.end(FailureKind.TIMEOUT, f"the job was not done after its time limit of {limit}")

    async def _stop_attempt(self) -> Verdict:
        """End the attempt everywhere at once; the verdict does not wait for the slowest rank."""
        will_restart = self._stop is None and self._attempt.number < self._plan.restarts
        why = self._stop.message if self._stop else "a rank failed"
        self._board.set_phase(Phase.STOPPING, _reason(self._make_verdict()), why)
        self._order({"type": "stop", "now": self._now})

        def has_stopped() -> bool:
            return all(index in self._attempt.stopped for index in self._nodes)

        await self._until(has_stopped, timeout_s=_SETTLE_S)
        if not has_stopped() and not will_restart:
            self._board.set_verdict(self._make_verdict(), final=True)
        verdict = self._make_verdict()
        if not await self._until(has_stopped, timeout_s=self._plan.grace_s + _STOP_MARGIN_S):
            for index in [i for i in self._nodes if i not in self._attempt.stopped]:
                self.lose(index)
        last = self._make_verdict()  # the same, but what became of the others is known by now
        return last if verdict.rank in (None, last.rank) else verdict

    def _make_verdict(self) -> Verdict:
        running = self._plan.num_ranks - len(self._attempt.outcomes)
        found = make_verdict(
            self._plan,
            self._attempt.outcomes.values(),
            attempt=self._attempt.number,
            running=running,
        )
        if self._stop is not None and (found is None or found.at_s > self._stop.at_s):
            return self._stop
        if found is None:
            raise RuntimeError("an attempt was stopped without a reason")
        return found

    def _order(self, message: dict[str, Any]) -> None:
        for send in list(self._nodes.values()):
            send(message)

    async def _until(self, is_so: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Wait for a condition; whether it came true in time."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not is_so():
            self._changed.clear()
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            try:
                await asyncio.wait_for(self._changed.wait(), left_s)
            except asyncio.TimeoutError:
                return is_so()
        return True


def _reason(verdict: Verdict) -> str:
    return {
        FailureKind.LOST_NODE: names.REASON_NODE_LOST,
        FailureKind.TIMEOUT: names.REASON_TIMEOUT,
        FailureKind.CANCELLED: names.REASON_CANCELLED,
        FailureKind.START_FAILED: names.REASON_START_FAILED,
    }.get(verdict.kind, names.REASON_RANK_FAILED)

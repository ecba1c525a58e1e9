"""One attempt: what nodes report about its ranks, and the resulting verdict.

An attempt belongs to a job, or is the part of a call that runs on one world. Reports from earlier
attempts are ignored. This module keeps records and writes the status. It sends no orders: the leads
decide what to do about a failure.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from windlass.agent.lead.changes import Changes
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.lead.verdicts import choose_first, is_consequence, make_verdict
from windlass.plan.plan import Plan
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import RankStarted
from windlass.wire.messages.ranks import RankDone, RankReport, RankRunning
from windlass.wire.messages.worlds import RankEnded
from windlass.wire.results import Outcome
from windlass.wire.states import MomentName, RankState
from windlass.wire.status import Verdict

SETTLE_S = 0.3  # how long to wait, before a verdict, for reports of earlier failures


class Attempt:
    """One generation of all ranks. `world` is the plan, limited to the nodes that take part."""

    def __init__(self, number: int, world: Plan) -> None:
        self.number = number
        self.world = world
        self.num_ranks = world.num_ranks
        self.has_failure = False
        self.outcomes: dict[int, Outcome] = {}
        self.exited: set[int] = set()
        self.running: set[int] = set()
        self.done: set[int] = (
            set()
        )  # ranks whose work has returned, and that wait for the other ranks
        self._broken: Verdict | None = None

    def add(self, outcome: Outcome, *, exited: bool) -> bool:
        """Record how a rank ended. Return False if it belongs to another attempt."""
        if outcome.attempt != self.number or not 0 <= outcome.rank < self.num_ranks:
            return False
        known = self.outcomes.get(outcome.rank)
        # The failure that a rank reported says more than its exit code.
        if known is None or not known.is_failure:
            self.outcomes[outcome.rank] = outcome
            self.has_failure |= outcome.is_failure
        if exited:
            self.exited.add(outcome.rank)
        return True

    def lose_node(self, index: int, note: str, *, is_cut: bool = False) -> Iterable[Outcome]:
        """Yield LOST outcomes for the ranks of a lost node that had not exited yet.

        If the node was cut off while other ranks still work, its exited ranks count as lost too. The
        node may take part in the next attempt of another lead.
        """
        is_missed = is_cut and not self.is_done
        for node in self.world.nodes:
            if node.index != index:
                continue
            for rank in node.ranks:
                if is_missed or rank not in self.exited:
                    yield Outcome(
                        rank=rank,
                        attempt=self.number,
                        state=RankState.LOST,
                        at_s=time.time(),
                        note=note,
                    )

    def break_off(self, verdict: Verdict) -> None:
        """Fail the attempt for a cause outside its ranks. What they raise later is a consequence."""
        self._broken = self._broken or verdict
        self.has_failure = True

    @property
    def is_done(self) -> bool:
        return len(self.exited) == self.num_ranks

    @property
    def are_all_done(self) -> bool:
        """True if the work of every rank has returned or failed."""
        return len(self.done | self.exited | self.outcomes.keys()) == self.num_ranks

    @property
    def has_only_consequences(self) -> bool:
        """True if every failed rank only lost a peer, so that the cause is still unknown."""
        if self._broken is not None:
            return False
        first = choose_first(self.world, self.outcomes.values())
        return first is not None and is_consequence(self.world, first)

    async def hear_cause(
        self, changed: Changes, should_stop: Callable[[], bool], *, timeout_s: float
    ) -> None:
        """Wait for the cause while every failed rank only lost a peer.

        Call this before stopping any rank, because a stopped rank can no longer report what it raised.
        `should_stop` ends the wait early.
        """
        await changed.until(
            lambda: not self.has_only_consequences or should_stop(), timeout_s=timeout_s
        )

    def make_verdict(self) -> Verdict | None:
        """Return the verdict on the first failure, or None if nothing failed."""
        if self._broken is not None:
            return self._broken
        running = self.num_ranks - len(self.outcomes)
        return make_verdict(
            self.world,
            self.outcomes.values(),
            attempt=self.number,
            running=running,
            returned=self.done,
        )


class RankNews:
    """Message handlers for reports about ranks. Only reports about `attempt` count."""

    def __init__(self, attempt: Attempt, status_writer: StatusWriter) -> None:
        self.attempt = attempt
        self._status_writer = status_writer
        self.handlers: Handlers = {
            RankStarted: self._take_started,
            RankRunning: self._take_running,
            RankDone: self._take_done,
            RankEnded: lambda _index, message, _body: self.take(
                message.outcome, exited=message.exited
            ),
            RankReport: self._take_report,
        }

    def take(self, outcome: Outcome, *, exited: bool) -> None:
        """Record how a rank ended. With `exited`, its process has exited. Otherwise the rank reported it."""
        attempt = self.attempt
        if attempt.add(outcome, exited=exited) and (exited or outcome.is_failure):
            self._status_writer.set_rank(outcome.rank, state=attempt.outcomes[outcome.rank].state)

    def _take_started(self, _index: int, message: RankStarted, _body: bytes) -> None:
        if message.rank < self.attempt.num_ranks:
            self._status_writer.set_rank(message.rank, pid=message.pid, state=RankState.RUNNING)

    def _take_running(self, _index: int, message: RankRunning, _body: bytes) -> None:
        if message.attempt != self.attempt.number:
            return
        self.attempt.running.add(message.rank)
        if len(self.attempt.running) == self.attempt.num_ranks:
            self._status_writer.mark(MomentName.RANKS_RUNNING, message.at_s)

    def _take_done(self, _index: int, message: RankDone, _body: bytes) -> None:
        if message.attempt == self.attempt.number and message.rank < self.attempt.num_ranks:
            self.attempt.done.add(message.rank)
            self._status_writer.set_rank(message.rank, state=RankState.RETURNED)

    def _take_report(self, _index: int, message: RankReport, _body: bytes) -> None:
        if message.attempt == self.attempt.number:
            self._status_writer.report(message)

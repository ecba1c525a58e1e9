"""One attempt: what nodes tell of its ranks, and the verdict that follows from it.

A job's attempt, or the part of a call that runs on one world. What is told of an attempt that is over is
of no matter. Keeps records and writes the status, gives no orders: what is done about them is the lead's
business.
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
    """One generation of all ranks. `world` is the plan on the nodes that take part in it."""

    def __init__(self, number: int, world: Plan) -> None:
        self.number = number
        self.world = world
        self.num_ranks = world.num_ranks
        self.has_failure = False
        self.outcomes: dict[int, Outcome] = {}
        self.exited: set[int] = set()
        self.running: set[int] = set()
        self.done: set[int] = set()  # ranks whose work has returned; they wait for the others
        self._broken: Verdict | None = None

    def add(self, outcome: Outcome, *, exited: bool) -> bool:
        """Hear how a rank ended; False when it was one of another attempt."""
        if outcome.attempt != self.number or not 0 <= outcome.rank < self.num_ranks:
            return False
        known = self.outcomes.get(outcome.rank)
        # what a rank said itself is not overwritten by its exit
        if known is None or not known.is_failure:
            self.outcomes[outcome.rank] = outcome
            self.has_failure |= outcome.is_failure
        if exited:
            self.exited.add(outcome.rank)
        return True

    def lose_node(self, index: int, note: str, *, is_cut: bool = False) -> Iterable[Outcome]:
        """A node is gone: how its ranks ended, as far as that was not known.

        One that was cut off is missed even if its ranks have returned, while others work: it may take
        part in the next attempt of another lead.
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
        """It failed, and not by one of its ranks: what they raise after that is a consequence."""
        self._broken = self._broken or verdict
        self.has_failure = True

    @property
    def is_done(self) -> bool:
        return len(self.exited) == self.num_ranks

    @property
    def are_all_done(self) -> bool:
        """Whether no rank's work is still running."""
        return len(self.done | self.exited | self.outcomes.keys()) == self.num_ranks

    @property
    def has_only_consequences(self) -> bool:
        """Whether all that failed did so because a peer was gone: who went first is still to be heard."""
        if self._broken is not None:
            return False
        first = choose_first(self.world, self.outcomes.values())
        return first is not None and is_consequence(self.world, first)

    async def hear_cause(
        self, changed: Changes, is_in_vain: Callable[[], bool], *, timeout_s: float
    ) -> None:
        """While all that failed have only lost a peer, wait for those that failed before them.

        First before anything is stopped: a rank that is stopped now could not say any more what it raised.
        """
        await changed.until(
            lambda: not self.has_only_consequences or is_in_vain(), timeout_s=timeout_s
        )

    def make_verdict(self) -> Verdict | None:
        """Who failed first; None when nobody did."""
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
    """Takes what is told of ranks; `attempt` is the one that counts."""

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
        """How a rank ended, as it says itself, or, with `exited`, as its process did."""
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

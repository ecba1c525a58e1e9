"""What nodes tell of the ranks of a job's attempt, written into the attempt and the status.

What is told of an attempt that is over is of no matter. Decides nothing.
"""

from __future__ import annotations

from windlass.agent.lead.attempt import Attempt
from windlass.agent.lead.status_writer import StatusWriter
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import RankStarted
from windlass.wire.messages.ranks import RankDone, RankReport, RankRunning
from windlass.wire.messages.worlds import RankEnded
from windlass.wire.results import Outcome
from windlass.wire.states import MomentName, RankState


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

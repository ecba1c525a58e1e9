"""What the lead hears: nodes that join, leave and tell of ranks; whoever wants the job to end.

Keeps it, and wakes whoever waits for a change. Gives no orders and decides nothing: that is
`agent.lead.job_lead`.
"""

from __future__ import annotations

import logging
import signal
import time
from typing import TypeGuard

from windlass import names
from windlass.agent.changes import Changes
from windlass.agent.lead.attempt import Attempt
from windlass.agent.lead.failure import make_job_verdict
from windlass.agent.lead.one_world import OneWorld
from windlass.agent.lead.roster import JoinedNode, Roster
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.link.agent_link import Send
from windlass.agent.silence_limits import Parting, SilenceLimits
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import LeadHandover, Seat
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.jobs import (
    AttemptStopped,
    AttemptStoreOpened,
    FilesFlushed,
    ImportsReady,
    JoinLead,
    NodeTrouble,
    RankEnded,
    RankStarted,
    StopRanks,
)
from windlass.wire.messages.link import FilePiece, Heartbeat
from windlass.wire.messages.ranks import RankDone, RankReport, RankRunning
from windlass.wire.results import Outcome
from windlass.wire.states import MomentName, NodeState, RankState
from windlass.wire.status import FailureKind, Phase, Verdict

logger = logging.getLogger(__name__)


class LeadInbox:
    """One job's nodes, its current attempt, and what was said of both."""

    def __init__(
        self, plan: Plan, status_writer: StatusWriter, *, incarnation: str, sight: SilenceLimits
    ) -> None:
        self._plan = plan
        self._status_writer = status_writer
        self._told: list[LeadHandover] = []  # what nodes remember of an earlier lead
        self._roster = Roster(plan)
        self._attempt = Attempt(-1, plan)
        self._flushed: set[int] = set()
        self._num_pieces = 0  # of files that nodes have sent
        self._stop: Verdict | None = None  # somebody ended the job: cancel, timeout, lease
        self._stop_signal: int = signal.SIGTERM
        self._now = False
        self._changed = Changes()
        self._sight = sight
        own = Seat(index=0, incarnation=incarnation)
        self._one_world = OneWorld(own, sight, wake=self._changed.set)
        self._is_cut = False  # nodes of this attempt are out of sight, or this one is out of theirs
        self._is_stopping = False
        self._handlers: Handlers = {
            RankEnded: self._take_ended,
            RankStarted: self._take_started,
            RankRunning: self._take_running,
            RankDone: self._take_done,
            RankReport: self._take_report,
            AttemptStopped: self._take_stopped,
            ImportsReady: self._take_ready,
            AttemptStoreOpened: self._take_store,
            FilesFlushed: self._take_flushed,
            FilePiece: self._count_piece,
            NodeTrouble: self._take_trouble,
            Heartbeat: lambda _index, _message: None,
        }

    def join(self, index: int, send: Send, about: JoinLead) -> None:
        """A node is there, with what it knows of the lead before this one."""
        member = JoinedNode(
            send, about.python, about.host, about.is_prepared, incarnation=about.incarnation
        )
        self._roster.add(index, member)
        self._one_world.join(self._roster.seat(index))
        if self._is_news(about.memory):
            self._told.append(about.memory)
            if about.lost_lead is not None:
                self._one_world.hear_of_lost_lead(about.memory, about.lost_lead)
        self._status_writer.set_node(
            index, state=NodeState.JOINED, pid=about.pid, python=about.python, host=about.host
        )
        self._check_python(index, about.python)
        self._changed.set()

    def _is_news(self, memory: LeadHandover | None) -> TypeGuard[LeadHandover]:
        """Whether it is not what this lead has told itself."""
        return memory is not None and memory.attempt > self._attempt.number

    def prepare(self, index: int) -> None:
        """A node has its code and its payload now."""
        if index in self._roster:
            self._roster[index].is_prepared = True
        self._changed.set()

    def knows(self, index: int) -> bool:
        """Whether there is such a node in this job."""
        return 0 <= index < len(self._plan.nodes)

    def is_here(self, index: int) -> bool:
        return index in self._roster

    def lose(self, index: int, why: str = "", *, parting: Parting = Parting.CLOSED) -> None:
        """A node is gone. Where it was cut off, its ranks may go on, and it may be this one that is."""
        name = self._roster.name(index)
        member = self._roster.drop(index)
        if member is None:
            self._lose_leaving(index, parting)
            return
        may_run = self._attempt.takes_part(index) and index not in self._attempt.stopped
        is_cut = may_run and parting is Parting.CUT
        if may_run or parting is not Parting.CUT:
            self._one_world.lose(Seat(index=index, incarnation=member.incarnation), parting)
        logger.warning("%s is gone%s", name, f": {why}" if why else "")
        self._status_writer.set_node(index, state=NodeState.LOST)
        note = "; ".join(
            part for part in (why, f"it was on {member.host}" * bool(member.host)) if part
        )
        for outcome in list(self._attempt.lose_node(index, note, is_cut=is_cut)):
            self._take_outcome(outcome, exited=True)
        self._hurry(is_cut=is_cut)
        self._changed.set()

    def _lose_leaving(self, index: int, parting: Parting) -> None:
        seat = self._one_world.find_leaving(index)
        if seat is not None:
            self._one_world.lose(seat, parting)
            self._hurry(is_cut=parting is Parting.CUT)
            self._changed.set()

    def _hurry(self, *, is_cut: bool) -> None:
        """Nodes out of sight may get another lead: the ranks here have less time than their grace."""
        self._is_cut |= is_cut
        if is_cut and self._is_stopping:
            self._tell_to_stop(now=False)

    def part(self, index: int) -> None:
        """The ranks of a node that leaves are dead, as it says itself, and it will never have others."""
        self._lose_leaving(index, Parting.CLOSED)

    def hear_farewell(self, seat: Seat, memory: LeadHandover | None) -> None:
        """A node that had been out of sight ends for good, and has no ranks; others may know what it knew."""
        if self._is_news(memory):
            self._told.append(memory)
        logger.info("node %s of an earlier attempt has ended for good", seat.index)
        self._one_world.lose(seat, Parting.CLOSED)
        self._changed.set()

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Somebody wants the job to end, which ranks hear as `signum`; asked again, it may end at once."""
        if self._stop is None:
            self._stop_signal = signum
            self._stop = make_job_verdict(
                self._plan, kind, message, at_s=time.time(), attempt=max(0, self._attempt.number)
            )
        if now and not self._now:
            self._now = True
            if self._status_writer.status.phase is Phase.STOPPING:
                self._tell_to_stop(now=True)
        self._changed.set()

    def receive(self, index: int, message: Message, _body: bytes = b"") -> None:
        """Something a node says; what it says of an attempt that is over is of no matter."""
        if getattr(message, "attempt", self._attempt.number) == self._attempt.number:
            self._handlers[type(message)](index, message)
        self._changed.set()

    def _take_ended(self, _index: int, message: RankEnded) -> None:
        self._take_outcome(message.outcome, exited=message.exited)

    def _take_started(self, _index: int, message: RankStarted) -> None:
        if message.rank < self._attempt.num_ranks:
            self._status_writer.set_rank(message.rank, pid=message.pid, state=RankState.RUNNING)

    def _take_running(self, _index: int, message: RankRunning) -> None:
        self._attempt.running.add(message.rank)
        if len(self._attempt.running) == self._attempt.num_ranks:
            self._status_writer.mark(MomentName.RANKS_RUNNING, message.at_s)

    def _take_done(self, _index: int, message: RankDone) -> None:
        if message.rank < self._attempt.num_ranks:
            self._attempt.done.add(message.rank)
            self._status_writer.set_rank(message.rank, state=RankState.RETURNED)

    def _take_report(self, _index: int, message: RankReport) -> None:
        self._status_writer.report(message)

    def _take_stopped(self, index: int, _message: AttemptStopped) -> None:
        self._attempt.stopped.add(index)

    def _take_store(self, _index: int, message: AttemptStoreOpened) -> None:
        self._attempt.store_port = message.port

    def _take_flushed(self, index: int, _message: FilesFlushed) -> None:
        self._flushed.add(index)

    def _count_piece(self, _index: int, _message: FilePiece) -> None:
        self._num_pieces += 1

    def _take_trouble(self, _index: int, message: NodeTrouble) -> None:
        self._status_writer.add_condition("warning", message.reason, message.message)

    def _take_outcome(self, outcome: Outcome, *, exited: bool) -> None:
        if self._attempt.add(outcome, exited=exited) and (exited or outcome.is_failure):
            self._status_writer.set_rank(
                outcome.rank, state=self._attempt.outcomes[outcome.rank].state
            )

    def _take_ready(self, index: int, message: ImportsReady) -> None:
        if message.is_complete and index in self._roster:
            self._roster[index].has_imported = True
            self._status_writer.set_node(index, state=NodeState.READY)
        if self._roster.have_all_imported:
            self._status_writer.mark(MomentName.IMPORTS_DONE)
        if message.culprit:
            self._status_writer.add_condition(
                "warning",
                names.REASON_FORK_UNSAFE,
                f"importing {message.culprit} started {message.num_threads - 1} thread(s): "
                f"ranks are spawned, not forked; leave it out of --preload to fork again",
            )
        for name, why in message.missing.items():
            self._status_writer.add_condition(
                "warning", names.REASON_IMPORTING, f"{name} could not be preloaded: {why}"
            )

    def _check_python(self, index: int, python: str) -> None:
        wanted = self._plan.python_minor
        has = ".".join(python.split(".")[:2])
        if wanted and has != wanted:
            message = (
                f"the function travels by value from Python {wanted}, but {self._roster.name(index)} "
                f"runs {has}, which cannot run its code; put it in a module of the project, or use "
                f"an image with Python {wanted}, or a client with {has}"
            )
            self.end(FailureKind.START_FAILED, message)

    def _make_stop(self, *, now: bool) -> StopRanks:
        """The order to end ranks; they have less than their grace where nodes do not see each other."""
        within_s = self._sight.cut_grace_s if self._is_cut else None
        return StopRanks(now=now, signal=self._stop_signal, within_s=within_s)

    def _tell_to_stop(self, *, now: bool) -> None:
        """Ranks that are being stopped already have less time from now on, or none."""
        for index in self._roster.here():
            self._roster[index].send(self._make_stop(now=now))

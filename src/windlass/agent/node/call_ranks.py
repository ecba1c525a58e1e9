"""The ranks of one world that takes calls, on one node: which call each has, and what it answers.

Talks to ranks over their channels and tells what they say and how they end. Which world runs what is the
lead's business.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
from dataclasses import dataclass

from windlass import names
from windlass.agent.link.rank_channel import NodeEnd
from windlass.agent.node import processes
from windlass.agent.node.node import Node
from windlass.agent.node.world_ranks import Echo, LiveRank, Tell, WorldRanks
from windlass.wire.frames import Frame, render_frame
from windlass.wire.message import Message
from windlass.wire.messages.computes import CALL_RANK_TO_NODE, CallAnswer, RankPrinted, RunCall
from windlass.wire.messages.forkserver import ForkRank
from windlass.wire.messages.worlds import EndWorld, RankEnded
from windlass.wire.payloads import forget


@dataclass(slots=True)
class RankCalls:
    """What one rank has been given, and what it has answered."""

    channel: NodeEnd
    call: str = ""  # the one it has not answered yet
    has_answered: bool = False
    answered: str = ""  # the last one that it has
    has_missed: bool = False  # a call was for it, and it was gone
    has_begun: bool = False  # it has said something of its call


class CallRanks:
    """One world's ranks here. With `keep` they stay after a call. `tell` takes what they say."""

    is_over = True

    def __init__(self, ranks: WorldRanks, *, keep: bool, tell: Tell, echo: Echo | None) -> None:
        self.ranks = ranks
        self._keep = keep
        self._tell = tell
        self._echo = echo
        self._calls: dict[int, RankCalls] = {}
        self._file = ""  # the payload of the current call, if it is this node's to remove

    def start(self, node: Node, request: ForkRank) -> None:
        """Start a rank; it waits for calls."""
        rank = request.rank
        channel = NodeEnd(asyncio.get_running_loop(), functools.partial(self._take, rank))
        self._calls[rank] = RankCalls(channel)
        on_lines = functools.partial(self._on_lines, rank)
        node.start_rank(self.ranks, request, on_lines, [channel.theirs])
        channel.give_away()

    # -- calls ---------------------------------------------------------------------------------

    def send(self, order: Message, body: bytes = b"") -> None:
        """Hand an order to every rank."""
        data = render_frame(order, body)
        sent = [(calls, calls.channel.send(data)) for calls in self._calls.values()]
        if isinstance(order, RunCall):
            self._file = order.file if order.is_ours else ""
            for calls, is_sent in sent:
                calls.call, calls.has_missed, calls.has_begun = order.id, not is_sent, False

    def _take(self, rank: int, frame: Frame) -> None:
        """What a rank says; what it printed before that comes first."""
        message = CALL_RANK_TO_NODE.read(frame.header)
        calls = self._calls.get(rank)
        if calls is None:
            return
        self.ranks.live[rank].streams.settle()
        calls.has_begun = True
        if isinstance(message, CallAnswer):
            if self.ranks.stopped_at_s is not None:
                calls.channel.close()  # it was asked to end, and is done: nothing more will come
            calls.call, calls.has_answered, calls.answered = "", True, calls.call
            if self._file and not any(other.call for other in self._calls.values()):
                self._forget_file()
        self._tell(message.replaced(rank=rank), frame.body)

    def _forget_file(self) -> None:
        forget(self._file)
        self._file = ""

    def _on_lines(self, rank: int, lines: bytes) -> None:
        number = self.ranks.number
        self._tell(RankPrinted(world=number, rank=rank, call=self._calls[rank].call), lines)
        if self._echo is not None:
            self._echo(rank, number, lines)

    # -- starting and ending -------------------------------------------------------------------

    def started(self, rank: int, pid: int) -> None:
        self.ranks.started(rank, pid)

    def exited(self, rank: LiveRank, code: int) -> None:
        """A rank's process is gone; what it said last is heard first."""
        calls = self._calls[rank.number]
        while calls.channel.read():
            pass
        self.ranks.remove(rank)
        calls.channel.close()
        del self._calls[rank.number]
        calls.has_missed |= calls.channel.was_reset and not calls.has_begun
        is_expected = calls.has_answered and not self._keep  # a fresh rank ends after its call
        if calls.call or (not is_expected and self.ranks.stopped_at_s is None):
            outcome = self.ranks.judge(rank, code, owes_result=True)
            given = "" if calls.has_missed else calls.call
            self._tell(RankEnded(outcome=outcome, answered=calls.answered, given=given))

    def report(self, message: Message) -> None:
        """Nothing: ranks that take calls say all else as answers."""

    def stop(self, order: EndWorld) -> None:
        """End every rank: those that wait for calls are told that none will come, the others are asked.

        With `now` those in a call are killed at once.
        """
        working = [rank for rank in self.ranks.live.values() if self._calls[rank.number].call]
        if self.ranks.stopped_at_s is None:
            self.ranks.ask_to_end(working, order.signal)
            for calls in self._calls.values():
                if not calls.call:
                    calls.channel.close()  # it ends by itself, exit handlers and all
        if order.now:
            self.ranks.kill(working)
        self.ranks.kill_after_grace(order.within_s)

    def sweep(self) -> None:
        """End what its ranks left behind: in their sessions, or started with their variables.

        Others may have been forked this moment and be unknown yet, so nothing else is touched.
        """
        mark = f"{names.ATTEMPT}={self.ranks.number}".encode()
        for pid in processes.find_descendants(os.getpid()):
            if processes.read_session(pid) in self.ranks.leaders or processes.is_marked(pid, mark):
                processes.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """All its ranks are gone."""
        self._forget_file()
        self.ranks.close()

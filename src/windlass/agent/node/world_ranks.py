"""One world's ranks on one node: started together, called together, ended together.

Talks to ranks over their channels and tells its owner what they say and how they end. Which world runs what
is the lead's business.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from windlass import names
from windlass.agent.link.rank_channel import NodeEnd
from windlass.agent.node import processes
from windlass.agent.node.exit_codes import judge_exit
from windlass.agent.node.streams import RankStreams
from windlass.wire.frames import Frame, render_frame
from windlass.wire.message import Message
from windlass.wire.messages.computes import CALL_RANK_TO_NODE, CallAnswer, RankGone, RunCall
from windlass.wire.payloads import forget

Tell = Callable[[Message, bytes], None]


@dataclass(slots=True)
class LiveRank:
    """One live rank."""

    rank: int
    channel: NodeEnd
    streams: RankStreams
    pid: int | None = None
    call: str = ""  # the one it has not answered yet
    has_answered: bool = False
    answered: str = ""  # the last one that it has
    has_missed: bool = False  # a call was for it, and it was gone
    has_begun: bool = False  # it has said something of its call


class WorldRanks:
    """The ranks of one world here."""

    def __init__(self, number: int, *, keep: bool, grace_s: float, tell: Tell) -> None:
        self.number = number
        self._keep = keep
        self.hands: dict[int, LiveRank] = {}
        self.leaders: set[int] = set()  # ranks that are gone: each led a session of its own
        self.file = ""  # the payload of the current call, if it is this node's to remove
        self._grace_s = grace_s
        self._tell = tell
        self._oom_kills = processes.read_oom_kills()
        self._stopped_at_s: float | None = None
        self._stop_signal: int = signal.SIGTERM
        self._has_killed = False
        self._timer: asyncio.TimerHandle | None = None

    # -- calls ---------------------------------------------------------------------------------

    def send(self, order: Message, body: bytes = b"") -> None:
        """Hand an order to every rank."""
        data = render_frame(order, body)
        for hand in self.hands.values():
            is_sent = hand.channel.send(data)
            if isinstance(order, RunCall):
                hand.call, hand.has_missed, hand.has_begun = order.id, not is_sent, False

    def take(self, rank: int, frame: Frame) -> None:
        """What a rank says; what it printed before that comes first."""
        message = CALL_RANK_TO_NODE.read(frame.header)
        hand = self.hands.get(rank)
        if hand is None:
            return
        hand.streams.settle()
        hand.has_begun = True
        if isinstance(message, CallAnswer):
            if self._stopped_at_s is not None:
                hand.channel.close()  # it was asked to end, and is done: nothing more will come
            hand.call, hand.has_answered, hand.answered = "", True, hand.call
            if self.file and not any(other.call for other in self.hands.values()):
                forget(self.file)
                self.file = ""
        self._tell(message.replaced(rank=rank), frame.body)

    # -- starting and ending -------------------------------------------------------------------

    def started(self, rank: int, pid: int) -> None:
        hand = self.hands.get(rank)
        if hand is None:
            processes.kill_group(pid, signal.SIGKILL)
            return
        hand.pid = pid
        if self._has_killed:
            self._kill([hand])
        elif self._stopped_at_s is not None:
            processes.kill(pid, self._stop_signal)

    def exited(self, hand: LiveRank, code: int) -> None:
        """A rank's process is gone; what it said last is heard first."""
        while hand.channel.read():
            pass
        hand.streams.close()
        hand.channel.close()
        hand.has_missed |= hand.channel.was_reset and not hand.has_begun
        del self.hands[hand.rank]
        if hand.pid is not None:
            self.leaders.add(hand.pid)
        is_expected = hand.has_answered and not self._keep  # a fresh rank ends after its call
        if hand.call or (not is_expected and self._stopped_at_s is None):
            self._tell_end(hand, code)

    def _tell_end(self, hand: LiveRank, code: int) -> None:
        outcome = judge_exit(
            rank=hand.rank,
            attempt=self.number,
            code=code,
            header=None,
            error=None,
            owes_result=True,
            at_s=time.time(),
            stopped_at_s=self._stopped_at_s,
            out_of_memory=processes.read_oom_kills() > self._oom_kills,
            was_killed=self._has_killed,
        )
        given = "" if hand.has_missed else hand.call
        gone = RankGone(world=self.number, answered=hand.answered, given=given, outcome=outcome)
        self._tell(gone, b"")

    def stop(
        self, *, now: bool, signum: int = signal.SIGTERM, within_s: float | None = None
    ) -> None:
        """End every rank: those that wait for calls are told that none will come, the others are asked.

        After the grace, which `within_s` bounds, they are killed; with `now` those in a call are, at once.
        """
        if self._stopped_at_s is None:
            self._stopped_at_s, self._stop_signal = time.time(), signum
            for hand in self.hands.values():
                if not hand.call:
                    hand.channel.close()  # it ends by itself, exit handlers and all
                elif hand.pid is not None:
                    processes.kill(hand.pid, signum)
        if now:
            self._kill(hand for hand in self.hands.values() if hand.call)
        loop = asyncio.get_running_loop()
        grace_s = self._grace_s if within_s is None else min(self._grace_s, within_s)
        at_s = loop.time() + grace_s
        if self._timer is not None:  # never later than was said before
            at_s = min(at_s, self._timer.when())
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._kill_all)

    def _kill_all(self) -> None:
        self._kill(self.hands.values())

    def _kill(self, hands: Iterable[LiveRank]) -> None:
        self._has_killed = True
        for hand in hands:
            if hand.pid is not None:
                processes.kill_group(hand.pid, signal.SIGKILL)
                processes.kill(hand.pid, signal.SIGKILL)

    def close(self) -> None:
        """All its ranks are gone."""
        if self.file:
            forget(self.file)
        if self._timer is not None:
            self._timer.cancel()


def sweep(number: int, leaders: set[int]) -> None:
    """End what the ranks of one world left behind: in their sessions, or started with their variables.

    Others may have been forked this moment and be unknown yet, so nothing else is touched.
    """
    mark = f"{names.ATTEMPT}={number}".encode()
    for pid in processes.find_descendants(os.getpid()):
        if processes.read_session(pid) in leaders or processes.is_marked(pid, mark):
            processes.kill(pid, signal.SIGKILL)

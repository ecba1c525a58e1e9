"""Processes of one world on one node: the ranks of a job's attempt, or ranks that take calls.

They start and end together. The outcome of each depends on its exit code, its result file and whether it was
asked to end. `agent.node.attempt_ranks` and `agent.node.compute_orders` give them work.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from windlass import names, processes, records
from windlass.agent.node.rank_streams import RankStreams
from windlass.errors import ProtocolError
from windlass.trusted import open_now
from windlass.wire.message import Message
from windlass.wire.results import ErrorInfo, Outcome, ResultHeader
from windlass.wire.states import RankState

_MAX_ERROR_BYTES = 4 << 20
_FENCED = "its agent was unresponsive for too long, and a replacement node may have been started"

Echo = Callable[[int, int, bytes], None]  # rank, attempt and log records


def judge_exit(
    *,
    rank: int,
    attempt: int,
    code: int,
    header: ResultHeader | None,
    error: ErrorInfo | None,
    needs_result: bool,
    at_s: float,
    stopped_at_s: float | None,
    out_of_memory: bool,
    was_killed: bool = False,
) -> Outcome:
    """Return the outcome of a rank whose process has exited.

    `stopped_at_s` and `was_killed` describe how this node ended it. A rank without a result (a script or a
    command) has succeeded if it exits with 0.
    """
    outcome = Outcome(rank=rank, attempt=attempt, state=RankState.STOPPED, at_s=at_s)
    if code == 0 and (
        not needs_result or (header is not None and header.state == RankState.RETURNED)
    ):
        return replace(
            outcome, state=RankState.RETURNED, at_s=header.at_s if header else at_s, exit_code=0
        )
    if header is not None and header.state != RankState.RETURNED:
        was_first = stopped_at_s is None or header.at_s < stopped_at_s
        return header.outcome() if was_first else replace(outcome, exit_code=code)
    # a SIGKILL from elsewhere came before the order to stop, even if it was noticed later
    if stopped_at_s is not None and (was_killed or code != -signal.SIGKILL):
        return outcome
    if code < 0:
        return replace(
            outcome,
            state=RankState.KILLED,
            signal=-code,
            out_of_memory=out_of_memory and code == -signal.SIGKILL,
        )
    return replace(outcome, state=RankState.EXITED, exit_code=code, error=error)


def read_error_file(path: Path) -> ErrorInfo | None:
    """Return the exception that torch's `record` wrote, or None if the file is missing or malformed."""
    try:
        with open(path, "rb", opener=open_now) as file:
            data = file.read(_MAX_ERROR_BYTES + 1)
        message = records.parse(data, path.name, max_bytes=_MAX_ERROR_BYTES)["message"]
    except (OSError, ProtocolError, KeyError, TypeError):
        return None
    text, extra = _read_message(message)
    if not text:
        return None
    type_name, _, rest = text.partition(": ")
    traceback = str(extra.get("py_callstack", ""))
    return ErrorInfo(type=type_name, message=rest, traceback=traceback).clip()


def _read_message(message: Any) -> tuple[str, dict[str, Any]]:
    if isinstance(message, dict):
        extra = message.get("extraInfo")
        return str(message.get("message", "")), extra if isinstance(extra, dict) else {}
    return str(message), {}


class SendToLead(Protocol):
    """Function that sends a message to the lead."""

    def __call__(self, message: Message, body: bytes = b"") -> None: ...


@dataclass(slots=True)
class LiveRank:
    """Rank that is running or about to be forked."""

    number: int
    streams: RankStreams
    pid: int | None = None  # None until it is forked


class WorldRanks:
    """Ranks of one world on this node."""

    def __init__(self, number: int, *, grace_s: float) -> None:
        self.number = number
        self.live: dict[int, LiveRank] = {}
        self.log_bytes = names.MAX_LOG_BYTES  # how many bytes each rank may log
        self.leaders: set[int] = set()  # PIDs of exited ranks, which are session leaders
        self.stopped_at_s: float | None = None
        self._grace_s = grace_s
        self._oom_kills = processes.read_oom_kills()
        self._stop_signal: int = signal.SIGTERM
        self._has_killed = False
        self.is_fenced = False  # the fork server ended them because their lease lapsed
        self._timer: asyncio.TimerHandle | None = None

    def find(self, pid: int) -> LiveRank | None:
        """Return the rank that runs in a process, or None."""
        return next((rank for rank in self.live.values() if rank.pid == pid), None)

    def started(self, rank: int, pid: int) -> None:
        """Record a rank's process, and end it if an order to stop arrived before."""
        self.live[rank].pid = pid
        if self._has_killed:
            self.kill([self.live[rank]])
        elif self.stopped_at_s is not None:
            processes.kill(pid, self._stop_signal)

    def remove(self, rank: LiveRank) -> None:
        """Remove a rank whose process has exited, after reading its last output."""
        rank.streams.close()
        del self.live[rank.number]
        if rank.pid is not None:
            self.leaders.add(rank.pid)

    def judge(
        self,
        rank: LiveRank,
        code: int,
        *,
        needs_result: bool,
        header: ResultHeader | None = None,
        error: ErrorInfo | None = None,
    ) -> Outcome:
        """Return the outcome of a rank whose process has exited."""
        if self.is_fenced and code == -signal.SIGKILL and self.stopped_at_s is None:
            return Outcome(
                rank=rank.number,
                attempt=self.number,
                state=RankState.LOST,
                at_s=time.time(),
                note=_FENCED,
            )
        return judge_exit(
            rank=rank.number,
            attempt=self.number,
            code=code,
            header=header,
            error=error,
            needs_result=needs_result,
            at_s=time.time(),
            stopped_at_s=self.stopped_at_s,
            out_of_memory=processes.read_oom_kills() > self._oom_kills,
            was_killed=self._has_killed,
        )

    # -- ending --------------------------------------------------------------------------------

    def ask_to_end(self, ranks: Iterable[LiveRank], signum: int) -> None:
        """Send a signal to ranks. Ranks that are not forked yet get it after their fork."""
        self.stopped_at_s, self._stop_signal = time.time(), signum
        for rank in ranks:
            if rank.pid is not None:
                processes.kill(rank.pid, signum)

    def kill(self, ranks: Iterable[LiveRank]) -> None:
        """Kill ranks immediately. Ranks that are not forked yet are killed after their fork."""
        self._has_killed = True
        for rank in ranks:
            if rank.pid is not None:
                processes.kill_group(rank.pid, signal.SIGKILL)
                processes.kill(rank.pid, signal.SIGKILL)

    def kill_after_grace(self, within_s: float | None = None) -> None:
        """Kill the remaining ranks after the grace period, at most `within_s`. Never postpones a kill."""
        loop = asyncio.get_running_loop()
        grace_s = self._grace_s if within_s is None else min(self._grace_s, within_s)
        at_s = loop.time() + grace_s
        if self._timer is not None:
            at_s = min(at_s, self._timer.when())
            self._timer.cancel()
        self._timer = loop.call_at(at_s, self._kill_all)

    def _kill_all(self) -> None:
        self.kill(self.live.values())

    def close(self) -> None:
        """Cancel the timer after the last rank has exited."""
        if self._timer is not None:
            self._timer.cancel()

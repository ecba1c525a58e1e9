"""One node's part of a job: starts its ranks when the lead says so, watches them, ends them.

Talks to the fork server below and to the lead above, which for node 0 is in the same process. Decides
nothing about the job: what a rank did is told to the lead, and the lead says what follows.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from windlass import names
from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.link.agent_link import Send
from windlass.agent.node import processes
from windlass.agent.node.exit_codes import judge_exit, read_error_file
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.report_socket import ReportSocket
from windlass.agent.node.streams import RankStreams
from windlass.agent.rank.peer_release import release
from windlass.errors import ProtocolError
from windlass.plan.plan import Plan
from windlass.plan.rank_env import Meeting
from windlass.spec.work import Function
from windlass.wire.job_folder import JobFolder
from windlass.wire.lead_handover import LeadHandover
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.forkserver import (
    ForkServerGone,
    ModulesImported,
    ProcessExited,
    ProcessStarted,
    StoreOpened,
    StoreStarted,
)
from windlass.wire.messages.jobs import (
    AttemptStopped,
    AttemptStoreOpened,
    ImportsReady,
    JoinLead,
    KeepHandover,
    NodeTrouble,
    OpenAttemptStore,
    RankEnded,
    RankStarted,
    ReleaseRanks,
    StartAttempt,
    StopRanks,
)
from windlass.wire.messages.link import Heartbeat, Welcome
from windlass.wire.messages.ranks import RankDone, RankFailed, RankReport, RankRunning
from windlass.wire.results import Outcome, ResultHeader, read_header
from windlass.wire.states import RankState

logger = logging.getLogger(__name__)

Echo = Callable[[int, int, bytes], None]  # rank, attempt and records of its log


@dataclass(slots=True)
class _Rank:
    """One live rank."""

    number: int
    streams: RankStreams
    pid: int | None = None
    is_done: bool = False  # its outcome is told; it waits for its peers


class Node:
    """The ranks of one node, one attempt at a time."""

    def __init__(
        self,
        plan: Plan,
        folder: JobFolder,
        index: int,
        run_dir: Path,
        *,
        forks: ForkServer,
        send: Send,
        echo: Echo | None = None,
    ) -> None:
        self._plan = plan
        self._folder = folder
        self._node = plan.nodes[index]
        self._world = plan
        self._ready: ImportsReady | None = None
        self.memory: LeadHandover | None = None  # what its lead has told it to keep
        self._forks = forks
        self._send = send
        self._echo = echo
        self._loop = asyncio.get_running_loop()
        self._ranks: dict[int, _Rank] = {}
        self._attempt = 0
        self._imported: set[str] = set()
        self._stopped_at_s: float | None = None
        self._stop_signal: int = signal.SIGTERM
        self._has_killed = False
        self._oom_kills = 0
        self._kill_timer: asyncio.TimerHandle | None = None
        self._emptied = asyncio.Event()
        path = run_dir / f"node-{index}.sock"
        self._handlers: Handlers = {
            StartAttempt: self._start,
            OpenAttemptStore: self._open_store,
            ReleaseRanks: lambda _message: self._release_done(),
            StopRanks: self._stop,
            KeepHandover: self._keep,
            Welcome: lambda _message: None,
            Heartbeat: lambda _message: None,
        }
        self._fork_handlers: Handlers = {
            ProcessStarted: self._on_started,
            ProcessExited: self._on_exited,
            StoreStarted: lambda _message: None,  # it ends with its fork server
            StoreOpened: self._on_store,
            ModulesImported: self._on_imported,
            ForkServerGone: self._on_server_gone,
        }
        self._report_handlers: Handlers = {
            RankRunning: self._send,
            RankReport: self._send,
            RankDone: self._on_done,
            RankFailed: self._on_failed,
        }
        self._reports = ReportSocket(self._loop, path, self._on_report)
        forks.listen(self._loop, self._on_fork_event)

    def receive(self, message: Message, _body: bytes = b"") -> None:
        """An order of the lead."""
        self._handlers[type(message)](message)

    def _open_store(self, order: OpenAttemptStore) -> None:
        self._prepare(order.attempt)
        self._forks.open_store(
            self._plan.framework, attempt=order.attempt, address=order.address, port=order.port
        )

    def _stop(self, order: StopRanks) -> None:
        self.stop(now=order.now, signum=order.signal, within_s=order.within_s)

    def _keep(self, order: KeepHandover) -> None:
        self.memory = order.memory

    def introduce(self, about: JoinLead) -> None:
        """Join the lead: who is here, and what it should know that an earlier lead may have said."""
        self._send(about.replaced(memory=self.memory))
        if self._ready is not None:
            self._send(self._ready)

    # -- starting ------------------------------------------------------------------------------

    def _prepare(self, attempt: int) -> None:
        """What an attempt needs before its first process."""
        self._attempt = attempt
        self._stopped_at_s = None
        self._has_killed = False
        self._oom_kills = processes.read_oom_kills()
        self._folder.make_attempt(attempt)
        if not self._forks.is_running:
            self._forks.restart()
            self._forks.listen(self._loop, self._on_fork_event)

    def _start(self, order: StartAttempt) -> None:
        attempt = order.attempt
        self._prepare(attempt)
        self._world = self._plan.on_nodes(order.nodes)
        self._node = next(n for n in self._world.nodes if n.index == self._node.index)
        meeting = Meeting(address=order.address, port=order.port, has_store=order.has_store)
        framework = load_framework(self._plan.framework)
        for rank in self._node.ranks:
            own = framework.make_env(self._world, rank, attempt=attempt, meeting=meeting)
            env = {**self._plan.env, **own}
            env[names.REPORT_SOCKET] = str(self._reports.path)
            env[names.TORCHELASTIC_ERROR_FILE] = str(self._folder.error(attempt, rank))
            echo = functools.partial(self._echo, rank, attempt) if self._echo else None
            streams = RankStreams(self._folder.log(attempt, rank), self._on_log_trouble, echo)
            self._ranks[rank] = _Rank(rank, streams)
            ends = streams.open()
            self._forks.fork(
                str(self._folder.plan),
                framework=framework.name,
                rank=rank,
                attempt=attempt,
                env=env,
                fds=ends,
            )
            for end in ends:
                os.close(end)

    # -- hearing of ranks ----------------------------------------------------------------------

    def _on_fork_event(self, event: Message) -> None:
        self._fork_handlers[type(event)](event)

    def _on_started(self, event: ProcessStarted) -> None:
        if event.rank not in self._ranks:
            return
        self._ranks[event.rank].pid = event.pid
        self._send(RankStarted(rank=event.rank, pid=event.pid))
        if self._has_killed:  # the order to stop overtook the fork
            self._kill_all()
        elif self._stopped_at_s is not None:
            processes.kill(event.pid, self._stop_signal)

    def _on_exited(self, event: ProcessExited) -> None:
        rank = next((r for r in self._ranks.values() if r.pid == event.pid), None)
        if rank is not None:
            self._reports.drain()
            self._on_exit(rank, event.code)

    def _on_store(self, event: StoreOpened) -> None:
        self._send(AttemptStoreOpened(attempt=event.attempt, port=event.port))

    def _on_imported(self, event: ModulesImported) -> None:
        self._imported.update(event.modules)
        is_complete = self._imported.issuperset(self._plan.preload)
        self._ready = ImportsReady(
            is_complete=is_complete,
            missing=event.missing,
            culprit=event.culprit,
            num_threads=event.num_threads,
        )
        self._send(self._ready)

    def _on_exit(self, rank: _Rank, code: int) -> None:
        del self._ranks[rank.number]
        rank.streams.close()
        header = self._read_header(rank.number)
        outcome = judge_exit(
            rank=rank.number,
            attempt=self._attempt,
            code=code,
            header=header,
            error=read_error_file(self._folder.error(self._attempt, rank.number)) if code else None,
            owes_result=isinstance(self._plan.work, Function),
            at_s=time.time(),
            stopped_at_s=self._stopped_at_s,
            out_of_memory=processes.read_oom_kills() > self._oom_kills,
            was_killed=self._has_killed,
        )
        self._send(RankEnded(outcome=outcome, exited=True))
        self._check_stopped()

    def _read_header(self, rank: int) -> ResultHeader | None:
        try:
            return read_header(self._folder.result(self._attempt, rank))
        except (OSError, ProtocolError) as error:
            logger.warning("result of rank %s: %s", rank, error)
            return None

    def _on_server_gone(self, _event: ForkServerGone) -> None:
        """The fork server died and its ranks with it; the next attempt gets a new one."""
        logger.warning("the fork server is gone")
        self.sweep()
        for rank in list(self._ranks.values()):
            if rank.pid is None:
                self._on_never_started(rank)
            else:
                self._on_exit(rank, -signal.SIGKILL)
        # in case one was awaited
        self._send(AttemptStoreOpened(attempt=self._attempt, port=0))
        message = f"the fork server of {self._node.name} died, and its ranks with it"
        self._send(NodeTrouble(reason=names.REASON_FORK_SERVER_DIED, message=message))

    def _on_never_started(self, rank: _Rank) -> None:
        del self._ranks[rank.number]
        rank.streams.close()
        outcome = Outcome(
            rank=rank.number, attempt=self._attempt, state=RankState.EXITED, at_s=time.time()
        )
        self._send(RankEnded(outcome=outcome, exited=True))
        self._check_stopped()

    def _on_log_trouble(self, message: str) -> None:
        self._send(NodeTrouble(reason=names.REASON_LOG_TRUNCATED, message=message))

    # -- ending --------------------------------------------------------------------------------

    def stop(
        self, *, now: bool, signum: int = signal.SIGTERM, within_s: float | None = None
    ) -> None:
        """End every rank: ask with `signum`, and after the grace, make it so. `now` leaves the asking out.

        `within_s` bounds the grace: a node that has lost sight of another must not keep ranks for longer.
        """
        self._reports.drain()  # a rank that is done already ends by itself, and loses nothing
        if self._stopped_at_s is None:
            self._stopped_at_s, self._stop_signal = time.time(), signum
            for rank in self._ranks.values():
                if rank.pid is not None and not rank.is_done:
                    processes.kill(rank.pid, signum)
            self._release_done()
        if now:
            self._kill_all()
        else:
            self._kill_after(min(self._plan.grace_s, math.inf if within_s is None else within_s))
        self._check_stopped()

    def _kill_after(self, grace_s: float) -> None:
        """Never later than was said before."""
        at_s = self._loop.time() + grace_s
        if self._kill_timer is not None:
            at_s = min(at_s, self._kill_timer.when())
            self._kill_timer.cancel()
        self._kill_timer = self._loop.call_at(at_s, self._kill_all)

    def _release_done(self) -> None:
        """Let ranks that wait for their peers go on to their end."""
        for rank in self._ranks.values():
            if rank.is_done:
                release(self._reports.path.parent, rank=rank.number, attempt=self._attempt)

    @property
    def is_idle(self) -> bool:
        return not self._ranks

    async def idle(self) -> None:
        """Until no rank of this node is left."""
        while self._ranks:
            self._emptied.clear()
            await self._emptied.wait()

    def _kill_all(self) -> None:
        self._has_killed = True
        for rank in self._ranks.values():
            if rank.pid is not None:
                processes.kill_group(rank.pid, signal.SIGKILL)
                processes.kill(rank.pid, signal.SIGKILL)

    def _check_stopped(self) -> None:
        if not self._ranks:
            self._emptied.set()
        if self._stopped_at_s is None or self._ranks:
            return
        if self._kill_timer is not None:
            self._kill_timer.cancel()
            self._kill_timer = None
        self.sweep()
        self._send(AttemptStopped(attempt=self._attempt))

    def sweep(self) -> None:
        """End what ranks left behind: grandchildren, daemons of theirs."""
        processes.kill_descendants(os.getpid(), spare=frozenset({self._forks.pid}))

    # -- reports -------------------------------------------------------------------------------

    def _on_report(self, message: RankRunning | RankDone | RankFailed | RankReport) -> None:
        if message.attempt == self._attempt:
            self._report_handlers[type(message)](message)

    def _note_done(self, number: int) -> None:
        if number in self._ranks:
            self._ranks[number].is_done = True
            if self._stopped_at_s is not None:
                self._release_done()

    def _on_done(self, message: RankDone) -> None:
        self._note_done(message.rank)
        self._send(message)

    def _on_failed(self, message: RankFailed) -> None:
        self._note_done(message.rank)
        outcome = message.header.outcome()
        if self._stopped_at_s is None or outcome.at_s < self._stopped_at_s:
            self._send(RankEnded(outcome=outcome, exited=False))

"""A node that stays: takes worlds, calls and code from the lead, and keeps several worlds at a time.

The warm counterpart of `agent.node.job_node`. Talks to the fork server below and to the lead above; decides
nothing.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.link.rank_channel import NodeEnd
from windlass.agent.node import processes
from windlass.agent.node.compute_setup import ComputeSetup
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.job_node import Echo
from windlass.agent.node.projects import Projects
from windlass.agent.node.report_socket import ReportSocket
from windlass.agent.node.streams import RankStreams
from windlass.agent.node.world_ranks import LiveRank, WorldRanks, sweep
from windlass.errors import WindlassError
from windlass.plan.rank_env import Meeting
from windlass.wire import payloads
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.computes import (
    CallAnswer,
    CallItem,
    CloseSharedStore,
    CodeSynced,
    EndWorld,
    ForkWorld,
    MakeObject,
    NodeSetUp,
    OpenSharedStore,
    RankPrinted,
    RunCall,
    SendMore,
    SettingUp,
    SetUpNode,
    SharedStoreGone,
    SharedStoreOpened,
    SyncCode,
    WorldAbsent,
    WorldCleared,
)
from windlass.wire.messages.forkserver import (
    CallRankSetup,
    ForkServerGone,
    ModulesImported,
    ProcessExited,
    ProcessStarted,
    StoreOpened,
    StoreStarted,
)
from windlass.wire.messages.jobs import ImportsReady, JoinLead, NodeTrouble
from windlass.wire.messages.link import Heartbeat, Welcome
from windlass.wire.messages.ranks import RankReport

logger = logging.getLogger(__name__)

# What each rank would else import for itself.
_OURS = ("cloudpickle", "windlass.agent.rank.call_rank")

SendBody = Callable[[Message, bytes], None]
Ship = Callable[[str, str], Awaitable[None]]  # a payload's key and its file


class CallNode:
    """The ranks of one node, whatever world they belong to."""

    def __init__(
        self,
        context: AgentContext,
        *,
        forks: ForkServer,
        send: SendBody,
        echo: Echo | None = None,
        ship: Ship | None = None,
    ) -> None:
        self._context = context
        self._plan = context.plan
        self._forks = forks
        self._send = send
        self._echo = echo
        self._ship = ship
        self._loop = asyncio.get_running_loop()
        self._worlds_here: dict[int, WorldRanks] = {}
        self._stores: dict[int, int] = {}  # pids
        self._closing: set[int] = set()
        self._unborn: set[int] = set()
        self._openings: list[OpenSharedStore] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._ready: ImportsReady | None = None
        self._emptied = asyncio.Event()
        self.spill = payloads.make_spill(f"{self._plan.job_id}-{context.index}", context.run_dir)
        self.projects = Projects(context)
        self._setup = ComputeSetup(context, forks)
        self._handlers: Handlers = {
            **dict.fromkeys((RunCall, MakeObject, SendMore), self._give),
            ForkWorld: self._muster,
            EndWorld: self._dismiss,
            OpenSharedStore: self._open_store,
            CloseSharedStore: lambda order, _body: self._close_store(order.number),
            SyncCode: self._sync,
            SetUpNode: lambda order, _body: self._start(self._set_up(order)),
            **dict.fromkeys((Welcome, Heartbeat), lambda _message, _body: None),
        }
        self._fork_handlers: Handlers = {
            ProcessStarted: self._on_started,
            ProcessExited: self._on_exited,
            StoreStarted: self._on_store,
            StoreOpened: self._on_store_opened,
            ModulesImported: self._on_imported,
            ForkServerGone: self._on_server_gone,
        }
        path = context.run_dir / f"node-{context.index}.sock"
        self._reports = ReportSocket(self._loop, path, self._on_report)
        forks.listen(self._loop, self._on_fork_event)
        forks.extend(_OURS)

    @property
    def memory(self) -> None:
        """Nothing: calls go on with any nodes."""

    def introduce(self, about: JoinLead) -> None:
        """Join the lead."""
        self._tell(about)
        if self._ready is not None:
            self._tell(self._ready)

    def receive(self, message: Message, body: bytes = b"") -> None:
        """An order of the lead."""
        self._handlers[type(message)](message, body)

    def _give(self, order: RunCall | MakeObject | SendMore, body: bytes) -> None:
        """Hand something to the ranks of a world; a call for ranks that are gone is answered for them."""
        world_ranks = self._worlds_here.get(order.world)
        is_call = isinstance(order, RunCall)
        file = order.file if isinstance(order, RunCall) and order.is_ours else ""
        if world_ranks is None:
            payloads.forget(file)
            if is_call:
                self._tell(WorldAbsent(world=order.world))
            return
        world_ranks.send(order, body)
        if is_call:
            world_ranks.file = file

    # -- worlds --------------------------------------------------------------------------------

    def _revive(self) -> None:
        if not self._forks.is_running:
            self._forks.restart()
            self._forks.listen(self._loop, self._on_fork_event)

    def _muster(self, order: ForkWorld, _body: bytes) -> None:
        """Fork the ranks of a world; they wait for calls."""
        self._revive()
        self._forks.extend(order.preload)
        number = order.world
        world = self._plan.with_nodes(order.nodes)
        here = next(node for node in world.nodes if node.index == self._context.index)
        meeting = Meeting(address="", port=0)  # which the first call tells
        world_ranks = WorldRanks(
            number, keep=order.about.keep, grace_s=self._plan.grace_s, tell=self._tell_of_rank
        )
        self._worlds_here[number] = world_ranks
        self._context.folder.make_attempt(number)
        about = order.about.replaced(
            start=order.about.start or self._plan.start,
            paths=[*order.about.paths, *self._setup.paths],
            spill=str(self.spill),
            peer_wait_s=self._plan.peer_wait_s,
        )
        framework = load_framework(about.framework)
        for rank in here.ranks:
            env = {
                **framework.make_env(world, rank, attempt=number, meeting=meeting),
                **order.env,
                names.REPORT_SOCKET: str(self._reports.path),
            }
            self._start_rank(world_ranks, rank, env, about)

    def _start_rank(
        self, world_ranks: WorldRanks, rank: int, env: dict[str, str], about: CallRankSetup
    ) -> None:
        on_lines = functools.partial(self._on_lines, world_ranks, rank)
        log = self._context.folder.log(world_ranks.number, rank)
        streams = RankStreams(log, self._on_log_trouble, on_lines)
        channel = NodeEnd(self._loop, functools.partial(world_ranks.take, rank))
        world_ranks.hands[rank] = LiveRank(rank, channel, streams)
        ends = streams.open()
        self._forks.fork_callee(
            about, rank=rank, attempt=world_ranks.number, env=env, fds=(*ends, channel.theirs)
        )
        channel.give_away()
        for end in ends:
            os.close(end)

    def _dismiss(self, order: EndWorld, _body: bytes) -> None:
        world_ranks = self._worlds_here.get(order.world)
        if world_ranks is None:
            self._tell(WorldCleared(world=order.world))
            return
        world_ranks.stop(now=order.now, signum=order.signal, within_s=order.within_s)
        self._check_cleared(world_ranks)

    def _check_cleared(self, world_ranks: WorldRanks) -> None:
        if world_ranks.hands:
            return
        world_ranks.close()
        self._worlds_here.pop(world_ranks.number, None)
        sweep(world_ranks.number, world_ranks.leaders)
        self._tell(WorldCleared(world=world_ranks.number))
        if not self._worlds_here:
            self._emptied.set()

    def stop(self, *, now: bool, within_s: float | None = None) -> None:
        """End all ranks of all worlds."""
        for world_ranks in list(self._worlds_here.values()):
            world_ranks.stop(now=now, within_s=within_s)
            self._check_cleared(world_ranks)

    @property
    def is_idle(self) -> bool:
        return not self._worlds_here

    async def idle(self) -> None:
        """Until no rank of this node is left."""
        while self._worlds_here:
            self._emptied.clear()
            await self._emptied.wait()

    # -- stores --------------------------------------------------------------------------------

    def _open_store(self, order: OpenSharedStore, _body: bytes) -> None:
        self._openings.append(order)
        self._open_stores()

    def _open_stores(self) -> None:
        """Open those that are asked for, once those that close have left their port."""
        while self._openings and not self._closing:
            order = self._openings.pop(0)
            self._revive()
            self._forks.extend(order.preload)
            self._forks.open_store(
                order.framework, attempt=order.number, address=order.address, port=order.port
            )

    def _close_store(self, number: int) -> None:
        pid = self._stores.pop(number, None)
        if pid is None:
            self._unborn.add(number)
        else:
            self._closing.add(pid)
            processes.kill(pid, signal.SIGKILL)

    def _lose_store(self, number: int) -> None:
        del self._stores[number]
        self._tell(SharedStoreGone(number=number))

    def _on_store(self, event: StoreStarted) -> None:
        self._stores[event.attempt] = event.pid
        if event.attempt in self._unborn:  # the order to close it overtook the fork
            self._unborn.discard(event.attempt)
            self._close_store(event.attempt)

    def _on_store_opened(self, event: StoreOpened) -> None:
        self._tell(SharedStoreOpened(number=event.attempt, port=event.port))

    # -- hearing of ranks ----------------------------------------------------------------------

    def _on_fork_event(self, event: Message) -> None:
        self._fork_handlers[type(event)](event)

    def _on_started(self, event: ProcessStarted) -> None:
        world_ranks = self._worlds_here.get(event.attempt)
        if world_ranks is not None:
            world_ranks.started(event.rank, event.pid)
        else:
            processes.kill_group(event.pid, signal.SIGKILL)

    def _on_exited(self, event: ProcessExited) -> None:
        self._reports.drain()
        self._on_exit(event.pid, event.code)

    def _on_imported(self, event: ModulesImported) -> None:
        self._ready = ImportsReady(
            is_complete=True,
            missing=event.missing,
            culprit=event.culprit,
            num_threads=event.num_threads,
        )
        self._tell(self._ready)

    def _on_server_gone(self, _event: ForkServerGone) -> None:
        logger.warning("the fork server is gone")
        self._forget_children()

    def _forget_children(self) -> None:
        """All that the fork server had forked went with it."""
        for world_ranks in list(self._worlds_here.values()):
            for hand in list(world_ranks.hands.values()):
                self._end_hand(world_ranks, hand, -signal.SIGKILL)
        self._stores.clear()
        self._closing.clear()
        self._open_stores()

    def _on_exit(self, pid: int, code: int) -> None:
        if pid in self._closing:
            self._closing.discard(pid)
            self._open_stores()
        for number in [number for number, other in self._stores.items() if other == pid]:
            self._lose_store(number)
        for world_ranks in list(self._worlds_here.values()):
            for hand in list(world_ranks.hands.values()):
                if hand.pid == pid:
                    self._end_hand(world_ranks, hand, code)
                    return

    def _end_hand(self, world_ranks: WorldRanks, hand: LiveRank, code: int) -> None:
        world_ranks.exited(hand, code)
        self._check_cleared(world_ranks)

    def _tell_of_rank(self, message: Message, body: bytes) -> None:
        """An answer; one that lies in a file goes there by parts, if the lead is elsewhere."""
        if self._ship and isinstance(message, (CallAnswer, CallItem)) and message.file:
            self._start(self._ship_answer(message, self._ship))
        else:
            self._send(message, body)

    async def _ship_answer(self, message: CallAnswer | CallItem, ship: Ship) -> None:
        await ship(message.file, message.file)
        self._send(message.replaced(payload=message.file), b"")
        os.unlink(message.file)

    def _on_lines(self, world_ranks: WorldRanks, rank: int, lines: bytes) -> None:
        hand = world_ranks.hands.get(rank)
        call = hand.call if hand else ""
        self._send(RankPrinted(world=world_ranks.number, rank=rank, call=call), lines)
        if self._echo is not None:
            self._echo(rank, world_ranks.number, lines)

    def _on_log_trouble(self, message: str) -> None:
        self._tell(NodeTrouble(reason=names.REASON_LOG_TRUNCATED, message=message))

    # -- code and set-up -----------------------------------------------------------------------

    def _sync(self, order: SyncCode, body: bytes) -> None:
        told = CodeSynced(project=order.project, digest=order.digest)
        try:
            self.projects.apply(order, body)
        except (WindlassError, OSError) as error:
            told = told.replaced(error=str(error))
        self._tell(told)

    async def _set_up(self, order: SetUpNode) -> None:
        told = NodeSetUp(digest=order.digest)
        try:
            if await self._setup.apply(order, lambda line: self._tell(SettingUp(line=line))):
                self._forks.listen(self._loop, self._on_fork_event)
                self._forget_children()
        except WindlassError as error:
            told = told.replaced(error=error.message, hint=error.hint)
        except OSError as error:
            told = told.replaced(error=str(error))
        self._tell(told)

    # -- small things --------------------------------------------------------------------------

    def _on_report(self, message: Message) -> None:
        if isinstance(message, RankReport):  # ranks that take calls say all else as answers
            self._tell(message)

    def _start(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _tell(self, message: Message) -> None:
        self._send(message, b"")

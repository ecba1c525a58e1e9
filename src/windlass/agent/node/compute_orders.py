"""Handlers for the orders of a compute's lead: set up the node, update its code, and run calls in its ranks.

`ComputeOrders` registers its handlers with the `Node`. `CallRanks` is a world of ranks that take calls.
`ComputeSetup` runs the image's steps and restarts the fork server when they change. Agents of jobs do not
import this module.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from windlass import names, processes
from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.link.payload_parts import Ship
from windlass.agent.link.rank_channel import NodeEnd
from windlass.agent.node.node import Node
from windlass.agent.node.world_ranks import Echo, LiveRank, SendToLead, WorldRanks
from windlass.agent.projects import Projects
from windlass.errors import WindlassError
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import RankRendezvous
from windlass.spec.work import ImageStep
from windlass.wire import payloads
from windlass.wire.frames import Frame, render_frame
from windlass.wire.message import Message
from windlass.wire.messages.computes import (
    CALL_RANK_TO_NODE,
    CallAnswer,
    CallItem,
    CodeSynced,
    ForkWorld,
    MakeObject,
    NodeSetUp,
    RankPrinted,
    RunCall,
    SendMore,
    SettingUp,
    SetUpNode,
    SyncCode,
    WorldAbsent,
)
from windlass.wire.messages.forkserver import ForkRank
from windlass.wire.messages.worlds import EndWorld, RankEnded
from windlass.wire.payloads import forget

# Imported in the fork server, so that ranks do not have to import them.
_OURS = ("cloudpickle", "windlass.agent.rank.call_rank")


class ComputeSetup:
    """Environment and image steps of one node."""

    def __init__(self, context: AgentContext, forks: ForkServer) -> None:
        self._context = context
        self._forks = forks
        self._env: dict[str, str | None] = {}  # None: the plan's variable is removed
        self._steps: list[ImageStep] = []
        self._hidden: dict[str, str] = {}
        self.paths: list[str] = []  # import paths of the packages that the steps installed
        self._lock = asyncio.Lock()  # needed because the set-up of a cancelled call keeps running

    async def apply(self, order: SetUpNode, emit: Callable[[str], None]) -> bool:
        """Run the steps that have not run yet. Return whether the fork server was restarted."""
        async with self._lock:
            return await self._apply(order, emit)

    async def _apply(self, order: SetUpNode, emit: Callable[[str], None]) -> bool:
        env, steps, hidden = dict(order.env), list(order.steps), dict(order.hidden)
        if (env, steps, hidden) == (self._env, self._steps, self._hidden):
            return False
        given = {**os.environ, **self._context.plan.env, **env, **hidden}
        ranks_env = {name: value for name, value in given.items() if value is not None}
        if steps != self._steps:
            self.paths = await self._run(steps, order.cwd, ranks_env, emit) if steps else []
        self._env, self._steps, self._hidden = env, steps, hidden
        self._forks.close()
        paths = os.pathsep.join((*self.paths, ranks_env.get("PYTHONPATH", ""))).strip(os.pathsep)
        paths_env = {"PYTHONPATH": paths} if paths else {}
        self._forks.start(self._forks.preload, {**ranks_env, **paths_env})
        return True

    async def _run(
        self, steps: list[ImageStep], cwd: str, env: dict[str, str], emit: Callable[[str], None]
    ) -> list[str]:
        from windlass.agent.image_steps import run_steps

        folder = self._context.folder.path
        return await run_steps(
            steps, folder=folder, python=sys.executable, cwd=cwd, env=env, emit=emit
        )


@dataclass(slots=True)
class RankCalls:
    """Call state of one rank."""

    channel: NodeEnd
    call: str = ""  # the call that it has not answered yet
    has_answered: bool = False
    answered: str = ""  # the last call that it answered
    has_missed: bool = False  # a call arrived after it had exited
    has_begun: bool = False  # it has sent a message about its call


class CallRanks:
    """Ranks of one world on this node. With `keep`, they stay after a call."""

    is_over = True

    def __init__(
        self, ranks: WorldRanks, *, keep: bool, send_to_lead: SendToLead, echo: Echo | None
    ) -> None:
        self.ranks = ranks
        self._keep = keep
        self._send_to_lead = send_to_lead
        self._echo = echo
        self._calls: dict[int, RankCalls] = {}
        self._file = ""  # the payload of the current call, if this node must remove it

    def start(self, node: Node, request: ForkRank) -> None:
        """Start a rank, which then waits for calls."""
        rank = request.rank
        channel = NodeEnd(asyncio.get_running_loop(), functools.partial(self._take, rank))
        self._calls[rank] = RankCalls(channel)
        on_lines = functools.partial(self._on_lines, rank)
        node.start_rank(self.ranks, request, on_lines, [channel.rank_fd])
        channel.close_rank_end()

    # -- calls ---------------------------------------------------------------------------------

    def send(self, order: Message, body: bytes = b"") -> None:
        """Send an order to every rank."""
        data = render_frame(order, body)
        sent = [(calls, calls.channel.send(data)) for calls in self._calls.values()]
        if isinstance(order, RunCall):
            self._file = order.file if order.is_ours else ""
            for calls, is_sent in sent:
                calls.call, calls.has_missed, calls.has_begun = order.id, not is_sent, False

    def _take(self, rank: int, frame: Frame) -> None:
        """Forward a rank's message, after the output that the rank printed before it."""
        message = CALL_RANK_TO_NODE.read(frame.header)
        calls = self._calls.get(rank)
        if calls is None:
            return
        self.ranks.live[rank].streams.settle()
        calls.has_begun = True
        if isinstance(message, CallAnswer):
            if self.ranks.stopped_at_s is not None:
                calls.channel.close()  # it was asked to end and has answered, so no more calls follow
            calls.call, calls.has_answered, calls.answered = "", True, calls.call
            if self._file and not any(other.call for other in self._calls.values()):
                self._forget_file()
        self._send_to_lead(message.replaced(rank=rank), frame.body)

    def _forget_file(self) -> None:
        forget(self._file)
        self._file = ""

    def _on_lines(self, rank: int, lines: bytes) -> None:
        number = self.ranks.number
        self._send_to_lead(RankPrinted(world=number, rank=rank, call=self._calls[rank].call), lines)
        if self._echo is not None:
            self._echo(rank, number, lines)

    # -- starting and ending -------------------------------------------------------------------

    def started(self, rank: int, pid: int) -> None:
        self.ranks.started(rank, pid)

    def exited(self, rank: LiveRank, code: int) -> None:
        """Handle the exit of a rank's process, after its last messages."""
        calls = self._calls[rank.number]
        while calls.channel.read():
            pass
        self.ranks.remove(rank)
        calls.channel.close()
        del self._calls[rank.number]
        calls.has_missed |= calls.channel.was_reset and not calls.has_begun
        is_expected = (
            calls.has_answered and not self._keep
        )  # a rank that is not kept ends after its call
        if calls.call or (not is_expected and self.ranks.stopped_at_s is None):
            outcome = self.ranks.judge(rank, code, needs_result=True)
            given = "" if calls.has_missed else calls.call
            self._send_to_lead(RankEnded(outcome=outcome, answered=calls.answered, given=given))

    def report(self, message: Message) -> None:
        """Ignore the report. Ranks that take calls send answers instead."""

    def stop(self, order: EndWorld) -> None:
        """End every rank: close the channels of waiting ranks, and signal those that run a call.

        With `now`, kill the ranks that run a call immediately.
        """
        working = [rank for rank in self.ranks.live.values() if self._calls[rank.number].call]
        if self.ranks.stopped_at_s is None:
            self.ranks.ask_to_end(working, order.signal)
            for calls in self._calls.values():
                if not calls.call:
                    calls.channel.close()  # it exits by itself and runs its exit handlers
        if order.now:
            self.ranks.kill(working)
        self.ranks.kill_after_grace(order.within_s)

    def sweep(self) -> None:
        """Kill processes that the ranks left behind, found by their sessions or their variables.

        Other processes are spared, because they may be ranks that were just forked.
        """
        mark = f"{names.ATTEMPT}={self.ranks.number}".encode()
        for pid in processes.find_descendants(os.getpid()):
            if processes.read_session(pid) in self.ranks.leaders or processes.is_marked(pid, mark):
                processes.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Release the world after its last rank has exited."""
        self._forget_file()
        self.ranks.close()


class ComputeOrders:
    """Handlers for a compute's orders to one node. `ship` is set if its lead is on another machine."""

    def __init__(self, node: Node, *, echo: Echo | None = None, ship: Ship | None = None) -> None:
        context = node.context
        self.node = node
        self._echo = node.echo = echo
        self._ship = ship
        self._tasks: set[asyncio.Task[None]] = set()
        self.spill = payloads.make_spill_folder(
            f"{context.plan.job_id}-{context.index}", context.run_dir
        )
        self.projects = Projects(context)
        self._setup = ComputeSetup(context, node.forks)
        node.take(
            {
                **dict.fromkeys((RunCall, MakeObject, SendMore), self._give),
                ForkWorld: self._fork,
                SyncCode: self._sync,
                SetUpNode: lambda order, _body: self._start(self._set_up(order)),
            }
        )
        node.forks.extend(_OURS)

    # -- worlds and calls ----------------------------------------------------------------------

    def _fork(self, order: ForkWorld, _body: bytes) -> None:
        """Fork the ranks of a world, which then wait for calls."""
        node, plan, number = self.node, self.node.context.plan, order.world
        world = plan.with_nodes(order.nodes)
        here = next(one for one in world.nodes if one.index == node.context.index)
        ranks = CallRanks(
            node.make_ranks(number, order.preload),
            keep=order.about.keep,
            send_to_lead=self._send_answer,
            echo=self._echo,
        )
        node.worlds[number] = ranks
        about = order.about.replaced(
            start=order.about.start or plan.start,
            paths=[*order.about.paths, *self._setup.paths],
            spill=str(self.spill),
            peer_wait_s=plan.peer_wait_s,
        )
        framework = load_framework(about.framework)
        rendezvous = RankRendezvous(address="", port=0)  # the first call provides it
        for rank in here.ranks:
            env = framework.make_env(world, rank, attempt=number, rendezvous=rendezvous)
            request = ForkRank(
                framework=framework.name,
                rank=rank,
                attempt=number,
                env={**env, **order.env},
                about=about,
            )
            ranks.start(node, request)

    def _give(self, order: RunCall | MakeObject | SendMore, body: bytes) -> None:
        """Send an order to the ranks of a world. If they are gone, answer a call with `WorldAbsent`."""
        world = self.node.worlds.get(order.world)
        if isinstance(world, CallRanks):
            world.send(order, body)
        elif isinstance(order, RunCall):
            if order.is_ours:
                payloads.forget(order.file)
            self.node.send_to_lead(WorldAbsent(world=order.world))

    def _send_answer(self, message: Message, body: bytes = b"") -> None:
        """Send an answer. If it is in a file and the lead is on another machine, send the file in parts."""
        if self._ship and isinstance(message, (CallAnswer, CallItem)) and message.file:
            self._start(self._ship_answer(message, self._ship))
        else:
            self.node.send_to_lead(message, body)

    async def _ship_answer(self, message: CallAnswer | CallItem, ship: Ship) -> None:
        await ship(message.file, message.file)
        self.node.send_to_lead(message.replaced(payload=message.file))
        os.unlink(message.file)

    # -- code and set-up -----------------------------------------------------------------------

    def _sync(self, order: SyncCode, body: bytes) -> None:
        report = CodeSynced(project=order.project, digest=order.digest)
        try:
            self.projects.apply(order, body)
        except (WindlassError, OSError) as error:
            report = report.replaced(error=str(error))
        self.node.send_to_lead(report)

    async def _set_up(self, order: SetUpNode) -> None:
        report = NodeSetUp(digest=order.digest)
        try:
            if await self._setup.apply(
                order, lambda line: self.node.send_to_lead(SettingUp(line=line))
            ):
                self.node.forget_children()
        except WindlassError as error:
            report = report.replaced(error=error.message, hint=error.hint)
        except OSError as error:
            report = report.replaced(error=str(error))
        except Exception as error:  # noqa: BLE001 - the lead waits for an answer even then
            report = report.replaced(error=f"{type(error).__name__}: {error}")
        self.node.send_to_lead(report)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

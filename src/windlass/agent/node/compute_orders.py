"""What only the lead of a compute orders: worlds that take calls, calls, code, and the node's set-up.

Loaded by the agents of computes alone: a job's start does not wait for it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.link.payload_parts import Ship
from windlass.agent.node.call_ranks import CallRanks
from windlass.agent.node.compute_setup import ComputeSetup
from windlass.agent.node.node import Node
from windlass.agent.node.projects import Projects
from windlass.agent.node.world_ranks import Echo
from windlass.errors import WindlassError
from windlass.plan.rank_env import Meeting
from windlass.wire import payloads
from windlass.wire.message import Message
from windlass.wire.messages.computes import (
    CallAnswer,
    CallItem,
    CodeSynced,
    ForkWorld,
    MakeObject,
    NodeSetUp,
    RunCall,
    SendMore,
    SettingUp,
    SetUpNode,
    SyncCode,
    WorldAbsent,
)
from windlass.wire.messages.forkserver import ForkRank

# What each rank would else import for itself.
_OURS = ("cloudpickle", "windlass.agent.rank.call_rank")


class ComputeOrders:
    """The projects, the set-up and the calls of one node; `ship` where its lead is on another machine."""

    def __init__(self, node: Node, *, echo: Echo | None = None, ship: Ship | None = None) -> None:
        context = node.context
        self.node = node
        self._echo = node.echo = echo
        self._ship = ship
        self._tasks: set[asyncio.Task[None]] = set()
        self.spill = payloads.make_spill(f"{context.plan.job_id}-{context.index}", context.run_dir)
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
        """Fork the ranks of a world; they wait for calls."""
        node, plan, number = self.node, self.node.context.plan, order.world
        world = plan.with_nodes(order.nodes)
        here = next(one for one in world.nodes if one.index == node.context.index)
        ranks = CallRanks(
            node.make_ranks(number, order.preload),
            keep=order.about.keep,
            tell=self._tell_of_rank,
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
        meeting = Meeting(address="", port=0)  # which the first call tells
        for rank in here.ranks:
            env = framework.make_env(world, rank, attempt=number, meeting=meeting)
            request = ForkRank(
                framework=framework.name,
                rank=rank,
                attempt=number,
                env={**env, **order.env},
                about=about,
            )
            ranks.start(node, request)

    def _give(self, order: RunCall | MakeObject | SendMore, body: bytes) -> None:
        """Hand something to the ranks of a world; a call for ranks that are gone is answered for them."""
        world = self.node.worlds.get(order.world)
        if isinstance(world, CallRanks):
            world.send(order, body)
        elif isinstance(order, RunCall):
            if order.is_ours:
                payloads.forget(order.file)
            self.node.tell(WorldAbsent(world=order.world))

    def _tell_of_rank(self, message: Message, body: bytes = b"") -> None:
        """An answer; one that lies in a file goes there by parts, if the lead is elsewhere."""
        if self._ship and isinstance(message, (CallAnswer, CallItem)) and message.file:
            self._start(self._ship_answer(message, self._ship))
        else:
            self.node.tell(message, body)

    async def _ship_answer(self, message: CallAnswer | CallItem, ship: Ship) -> None:
        await ship(message.file, message.file)
        self.node.tell(message.replaced(payload=message.file))
        os.unlink(message.file)

    # -- code and set-up -----------------------------------------------------------------------

    def _sync(self, order: SyncCode, body: bytes) -> None:
        told = CodeSynced(project=order.project, digest=order.digest)
        try:
            self.projects.apply(order, body)
        except (WindlassError, OSError) as error:
            told = told.replaced(error=str(error))
        self.node.tell(told)

    async def _set_up(self, order: SetUpNode) -> None:
        told = NodeSetUp(digest=order.digest)
        try:
            if await self._setup.apply(order, lambda line: self.node.tell(SettingUp(line=line))):
                self.node.forget_children()
        except WindlassError as error:
            told = told.replaced(error=error.message, hint=error.hint)
        except OSError as error:
            told = told.replaced(error=str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, the lead waits for an answer
            told = told.replaced(error=f"{type(error).__name__}: {error}")
        self.node.tell(told)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

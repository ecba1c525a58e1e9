"""Worlds: generations of ranks that run together, and the orders sent to their nodes.

Each attempt of a job has its own world. On a compute, a fresh world serves one call. A kept world stays
in its slot until it is replaced or one of its ranks dies. The leads decide which work runs on a world and
what happens when it ends. `Changes` lets a lead wait for a condition. This module must not import messages of
calls at load time, because that would delay the start of jobs.
"""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.lead.clusters import RendezvousPoint
from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.silence_limits import Disconnect
from windlass.errors import SpecError, count_noun
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import NodePlan, Plan, make_nodes, renumber
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Message
from windlass.wire.messages.worlds import EndWorld, WorldCleared

if TYPE_CHECKING:
    from windlass.wire.messages.calls import WorldRequest


class Changes(asyncio.Event):
    """Event to set after every change. Only one task at a time may wait for a condition."""

    async def wait_until(self, condition: Callable[[], bool], *, timeout_s: float | None) -> bool:
        """Wait for a condition. Return False if it is still false after `timeout_s`."""
        loop = asyncio.get_running_loop()
        deadline = None if timeout_s is None else loop.time() + timeout_s
        while not condition():
            self.clear()
            left_s = None if deadline is None else deadline - loop.time()
            if left_s is not None and left_s <= 0:
                return False
            try:
                await asyncio.wait_for(self.wait(), left_s)
            except asyncio.TimeoutError:
                return condition()
        return True


_KEPT_WORLDS = 200


@dataclass(slots=True)
class World:
    """One generation of ranks."""

    number: int
    plan: Plan  # limited to the nodes and ranks that take part
    shape: str = ""  # worlds of equal shape are interchangeable
    made_for: str = ""  # ID of the call during which it was made
    slot: str = ""  # slot that keeps it, or empty if it serves one call
    instance: str = ""  # ID of the object that lives in it
    version: str = ""  # version of the project at its last call
    rendezvous: RendezvousPoint | None = None  # where its ranks meet, set before its first call
    sent_rendezvous: RendezvousPoint | None = None  # the rendezvous point last sent to its ranks
    is_alive: bool = True
    is_ending: bool = False
    end_signal: int = 0  # signal that asks its ranks to end
    is_partitioned: bool = False  # some of its nodes became unreachable and may have another lead
    cleared: set[int] = field(default_factory=set)  # nodes that are lost or have no ranks left
    nodes: list[int] = field(init=False)
    rank_nodes: list[int] = field(init=False)  # the nodes that have ranks

    def __post_init__(self) -> None:
        self.nodes = [node.index for node in self.plan.nodes]
        self.rank_nodes = [node.index for node in self.plan.nodes if node.num_ranks]

    @property
    def is_cleared(self) -> bool:
        """True if none of its ranks remain on reachable nodes."""
        return self.cleared.issuperset(self.nodes)


def make_world_nodes(
    plan: Plan, requested: WorldRequest, here: Sequence[int] | None = None
) -> tuple[NodePlan, ...]:
    """Return the nodes of a world and the ranks on each, with chosen ranks renumbered from 0.

    If `here` is given, only the requested nodes that it contains take part.
    """
    only_first = load_framework(plan.framework).cluster is not None
    nodes = make_nodes(requested.nodes, requested.procs, job_name=plan.name, only_first=only_first)
    if here is not None:
        nodes = renumber(node for node in nodes if node.index in here)
    return nodes if requested.ranks is None or only_first else _choose(nodes, requested.ranks)


def _choose(nodes: Sequence[NodePlan], chosen: Sequence[int]) -> tuple[NodePlan, ...]:
    num_ranks = nodes[-1].ranks.stop
    wrong = [rank for rank in chosen if not 0 <= rank < num_ranks]
    if wrong or not chosen:
        raise SpecError(
            f"ranks={list(chosen)}: the compute has only {count_noun(num_ranks, 'rank')}",
            hint=f"use ranks from 0 to {num_ranks - 1}",
        )
    nodes_of_world: list[NodePlan] = []
    for node in nodes:
        count = len(set(chosen) & set(node.ranks))
        if count:
            first = nodes_of_world[-1].ranks.stop if nodes_of_world else 0
            nodes_of_world.append(replace(node, first_rank=first, num_ranks=count))
    return tuple(nodes_of_world)


class WorldTable:
    """Worlds by number."""

    def __init__(self, nodes: NodeTable) -> None:
        self._nodes = nodes
        self._worlds: dict[int, World] = {}

    def add(self, world: World) -> None:
        self._worlds[world.number] = world

    def get(self, number: int) -> World | None:
        return self._worlds.get(number)

    def all(self) -> list[World]:
        return list(self._worlds.values())

    def forget(self, world: World) -> None:
        self._worlds.pop(world.number, None)

    def send(self, world: World, order: Message, body: bytes = b"") -> None:
        """Send an order to the nodes that have ranks.

        Node 0 goes last. Otherwise its ranks compete for CPU and delay the other sends.
        """
        for index in reversed(world.rank_nodes):
            self._nodes.order(index, order, body)

    def end(self, world: World, *, now: bool, signum: int | None = None) -> None:
        """End a world's ranks. Busy ranks get `signum` (default: the signal of the previous request).

        The grace period is shorter if nodes of the world are unreachable, because they may get another lead.
        """
        world.is_alive, world.is_ending = False, True
        world.end_signal = signum or world.end_signal or signal.SIGTERM
        world.cleared.update(self._nodes.missing(world.nodes))
        within_s = self._nodes.limits.cut_grace_s if world.is_partitioned else None
        order = EndWorld(world=world.number, now=now, signal=world.end_signal, within_s=within_s)
        for index in reversed(world.nodes):
            self._nodes.order(index, order)

    def lose(self, index: int, why: str, disconnect: Disconnect) -> JoinedNode | None:
        """Mark the worlds of a lost node as dead. Return the node, or None if it had not joined."""
        worlds = [world for world in self._worlds.values() if index in world.nodes]
        may_run = any(index not in world.cleared for world in worlds)
        is_partitioned = disconnect is Disconnect.CUT and (
            may_run or self._nodes.one_world.find_unreachable(index) is not None
        )
        node = self._nodes.lose(index, why, disconnect, may_run=may_run)
        for world in worlds:
            world.is_alive = False
            world.cleared.add(index)
            world.is_partitioned |= is_partitioned
            if is_partitioned and world.is_ending:
                self.end(world, now=False)
        return node

    def lose_rank(self, number: int) -> None:
        """Mark a world as dead after the loss of a rank, so that it gets no more work."""
        if number in self._worlds:
            self._worlds[number].is_alive = False

    def take_cleared(self, index: int, message: WorldCleared, _body: bytes = b"") -> None:
        """Record that no rank of a world remains on a node."""
        if message.world in self._worlds:
            self._worlds[message.world].cleared.add(index)


def keep_log(folder: JobFolder, world: int, rank: int, lines: bytes) -> None:
    """Append lines to the log of a rank, up to a size limit."""
    folder.make_attempt(world)
    with folder.log(world, rank).open("ab") as file:
        if file.tell() + len(lines) <= names.MAX_LOG_BYTES:
            file.write(lines)


def prune_logs(folder: JobFolder, world: int) -> None:
    """Delete the logs of the world that ran 200 worlds before this one."""
    shutil.rmtree(folder.attempt(world - _KEPT_WORLDS), ignore_errors=True)

"""Worlds: generations of ranks that belong together, as a lead keeps them, and orders to their nodes.

An attempt of a job has one of its own. On a compute a fresh one serves one call, a kept one stays in its
slot until it is replaced or one of its ranks dies. Which work runs on a world, and what follows from its
end, is the lead's business. Must not import messages of calls when it is loaded: a job's start would wait
for them.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.lead.clusters import MeetingPoint
from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.silence_limits import Parting
from windlass.errors import SpecError
from windlass.frameworks.framework import load_framework
from windlass.plan.plan import NodePlan, Plan, make_nodes, renumber
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Message
from windlass.wire.messages.worlds import EndWorld, WorldCleared

if TYPE_CHECKING:
    from windlass.wire.messages.calls import WorldAsked


_KEPT_WORLDS = 200


@dataclass(slots=True)
class World:
    """One generation of ranks."""

    number: int
    plan: Plan  # on the nodes and ranks that take part
    shape: str = ""  # worlds of one shape can stand in for each other
    made_for: str = ""  # the call during which it was made
    slot: str = ""  # where it is kept; empty: for one call only
    instance: str = ""  # which object lives in it
    version: str = ""  # of the project, when it was last called
    meeting: MeetingPoint | None = None  # where its ranks find each other, from its first call on
    met: MeetingPoint | None = None  # the one that they were last sent
    is_alive: bool = True
    is_ending: bool = False
    end_signal: int = 0  # how its ranks hear of the end
    is_cut: bool = False  # nodes of it are out of sight, or this one is out of theirs
    cleared: set[int] = field(default_factory=set)  # nodes on which none of it is left, or not here
    nodes: list[int] = field(init=False)
    rank_nodes: list[int] = field(init=False)  # those of them that have ranks

    def __post_init__(self) -> None:
        self.nodes = [node.index for node in self.plan.nodes]
        self.rank_nodes = [node.index for node in self.plan.nodes if node.num_ranks]

    @property
    def is_cleared(self) -> bool:
        """Whether no rank of it is left on any node that is here."""
        return self.cleared.issuperset(self.nodes)


def make_world_nodes(
    plan: Plan, asked: WorldAsked, here: Sequence[int] | None = None
) -> tuple[NodePlan, ...]:
    """The nodes of a world and the ranks on each; chosen ranks are counted anew, as a world of their own.

    Of the nodes asked for only those `here` take part, where that is told.
    """
    only_first = load_framework(plan.framework).cluster is not None
    nodes = make_nodes(asked.nodes, asked.procs, job_name=plan.name, only_first=only_first)
    if here is not None:
        nodes = renumber(node for node in nodes if node.index in here)
    return nodes if asked.ranks is None or only_first else _choose(nodes, asked.ranks)


def _choose(nodes: Sequence[NodePlan], chosen: Sequence[int]) -> tuple[NodePlan, ...]:
    num_ranks = nodes[-1].ranks.stop
    wrong = [rank for rank in chosen if not 0 <= rank < num_ranks]
    if wrong or not chosen:
        raise SpecError(
            f"ranks={list(chosen)} cannot be chosen of {num_ranks} rank(s)",
            hint=f"name some of 0 to {num_ranks - 1}",
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
        """To nodes with ranks; node 0 last: its ranks would keep this processor from telling the others."""
        for index in reversed(world.rank_nodes):
            self._nodes.order(index, order, body)

    def end(self, world: World, *, now: bool, signum: int | None = None) -> None:
        """End a world's ranks; those that work are asked with `signum`, as they were before if that is None.

        They have less than their grace where nodes of it are out of sight, which may get another lead.
        """
        world.is_alive, world.is_ending = False, True
        world.end_signal = signum or world.end_signal or signal.SIGTERM
        world.cleared.update(self._nodes.missing(world.nodes))
        within_s = self._nodes.sight.cut_grace_s if world.is_cut else None
        order = EndWorld(world=world.number, now=now, signal=world.end_signal, within_s=within_s)
        for index in reversed(world.nodes):
            self._nodes.order(index, order)

    def lose(self, index: int, why: str, parting: Parting) -> JoinedNode | None:
        """A node is gone, and with it its ranks of every world, or soon; None when it was not here."""
        worlds = [world for world in self._worlds.values() if index in world.nodes]
        may_run = any(index not in world.cleared for world in worlds)
        is_cut = parting is Parting.CUT and (
            may_run or self._nodes.one_world.find_unseen(index) is not None
        )
        node = self._nodes.lose(index, why, parting, may_run=may_run)
        for world in worlds:
            world.is_alive = False
            world.cleared.add(index)
            world.is_cut |= is_cut
            if is_cut and world.is_ending:
                self.end(world, now=False)
        return node

    def lose_rank(self, number: int) -> None:
        """A rank of a world is gone: nothing more is given to that world."""
        if number in self._worlds:
            self._worlds[number].is_alive = False

    def take_cleared(self, index: int, message: WorldCleared, _body: bytes = b"") -> None:
        """A node says that no rank of a world is left on it."""
        if message.world in self._worlds:
            self._worlds[message.world].cleared.add(index)


def keep_log(folder: JobFolder, world: int, rank: int, lines: bytes) -> None:
    """Add lines to the log of a rank, up to a limit."""
    folder.make_attempt(world)
    with folder.log(world, rank).open("ab") as file:
        if file.tell() + len(lines) <= names.MAX_LOG_BYTES:
            file.write(lines)


def prune_logs(folder: JobFolder, world: int) -> None:
    """Forget what was printed long before a world."""
    shutil.rmtree(folder.attempt(world - _KEPT_WORLDS), ignore_errors=True)

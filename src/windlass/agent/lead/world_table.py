"""The worlds of ranks that a lead has: orders to the nodes of one, and on which nodes it is gone.

The same for the one world of a job's attempt and for the worlds that a compute keeps. Which work runs on a
world, and what follows from its end, is the lead's business.
"""

from __future__ import annotations

import signal

from windlass.agent.lead.node_table import JoinedNode, NodeTable
from windlass.agent.lead.world import World
from windlass.agent.silence_limits import Parting
from windlass.wire.message import Message
from windlass.wire.messages.worlds import EndWorld, WorldCleared


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

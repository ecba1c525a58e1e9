"""A world: a generation of ranks that belong together, as a lead keeps it.

An attempt of a job has one of its own. On a compute a fresh one serves one call, a kept one stays in its slot
until it is replaced or one of its ranks dies. Records and arithmetic; no orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.lead.rendezvous import MeetingPoint
from windlass.errors import SpecError
from windlass.plan.plan import Plan
from windlass.plan.topology import NodePlan, make_nodes, renumber

if TYPE_CHECKING:
    from windlass.wire.messages.calls import (
        WorldAsked,
    )  # nothing that a job's start should wait for


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
    met: MeetingPoint | None = None  # the one that they were last told
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

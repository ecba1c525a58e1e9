"""Worlds: generations of ranks that belong together, as the lead keeps them.

A world has its own numbering and its own life: a fresh one serves one call, a kept one
stays in its slot until it is replaced or one of its ranks dies. Records and arithmetic; no orders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from windlass.agent.frameworks.framework_table import load_framework
from windlass.agent.node.master_port import HeldPort
from windlass.errors import SpecError
from windlass.plan.plan import Plan
from windlass.plan.rank_env import Meeting
from windlass.plan.topology import NodePlan, make_nodes, renumber
from windlass.wire.messages.calls import WorldAsked


@dataclass(slots=True)
class MeetingPoint:
    """Where ranks find each other: a store on node 0, or a port that rank 0 of one world opens."""

    number: int
    port: int | None = None  # None: not told yet
    held: HeldPort | None = None  # where there is no store
    num_calls: int = 0
    is_shared: bool = False  # by all worlds of a compute

    @property
    def has_store(self) -> bool:
        return self.held is None

    def render(self, address: str, framework: str) -> dict[str, str]:
        """What ranks find in their environment."""
        meeting = Meeting(address=address, port=self.port or 0, has_store=self.has_store)
        return load_framework(framework).make_call_env(meeting)

    def next_part(self) -> int:
        """Of the store, for one call alone: what others left in it is not found."""
        self.num_calls += 1
        return self.num_calls


@dataclass(slots=True)
class World:
    """One generation of ranks."""

    number: int
    plan: Plan  # on the nodes and ranks that take part
    shape: str  # worlds of one shape can stand in for each other
    made_for: str = ""  # the call during which it was made
    slot: str = ""  # where it is kept; empty: for one call only
    instance: str = ""  # which object lives in it
    version: str = ""  # of the project, when it was last called
    meeting: MeetingPoint | None = None  # where its ranks find each other, from its first call on
    met: dict[str, str] = field(default_factory=dict)  # what they were last told of it
    is_alive: bool = True
    is_dismissed: bool = False
    cleared: set[int] = field(default_factory=set)  # nodes on which none of it is left
    nodes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = [node.index for node in self.plan.nodes]

    @property
    def is_cleared(self) -> bool:
        return self.cleared.issuperset(self.nodes)


def make_world_nodes(
    plan: Plan, asked: WorldAsked, here: Sequence[int] | None = None
) -> tuple[NodePlan, ...]:
    """The nodes of a world and the ranks on each; chosen ranks are counted anew, as a world of their own.

    Of the nodes asked for only those `here` take part, where that is told.
    """
    nodes = make_nodes(asked.nodes, asked.procs, job_name=plan.name)
    if here is not None:
        nodes = renumber(node for node in nodes if node.index in here)
    return nodes if asked.ranks is None else _choose(nodes, asked.ranks)


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

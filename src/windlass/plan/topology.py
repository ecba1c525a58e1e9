"""Ranks of a job: nodes x processes -> a table of ranks.

Pure. Knows nothing of pods, engines or torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node: its place, its stable name and the ranks it runs."""

    index: int
    name: str
    first_rank: int
    num_ranks: int

    @property
    def ranks(self) -> range:
        return range(self.first_rank, self.first_rank + self.num_ranks)


def make_nodes(
    num_nodes: int, num_procs: int, *, job_name: str, only_first: bool = False
) -> tuple[NodePlan, ...]:
    """Node i runs ranks i*procs to (i+1)*procs - 1 and keeps its name for the whole job.

    With `only_first` the others run none: they serve those of node 0.
    """
    return tuple(
        NodePlan(
            index=index,
            name=f"{job_name}-node-{index}",
            first_rank=num_procs if only_first and index else index * num_procs,
            num_ranks=0 if only_first and index else num_procs,
        )
        for index in range(num_nodes)
    )


def renumber(nodes: Iterable[NodePlan]) -> tuple[NodePlan, ...]:
    """The ranks of an attempt on some of the nodes only: counted anew, in the order of the nodes."""
    renumbered: list[NodePlan] = []
    for node in nodes:
        first_rank = renumbered[-1].ranks.stop if renumbered else 0
        renumbered.append(replace(node, first_rank=first_rank))
    return tuple(renumbered)

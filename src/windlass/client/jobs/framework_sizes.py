"""What a framework that counts resources itself is told that nodes have, from the settings.

Called where a job or a call is made; None for frameworks that count nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.agent.frameworks import python_ranks
from windlass.errors import SpecError
from windlass.spec.node_sizes import NodeSize, NodeSizes, make_size

if TYPE_CHECKING:
    from windlass.agent.frameworks.framework import Framework
    from windlass.settings import Settings


def make_sizes(
    framework: Framework,
    settings: Settings,
    others: Mapping[str, Any] | None = None,
    *,
    are_alike: bool = False,
) -> NodeSizes | None:
    """Node 0 has what the settings say; `others` what they are given, else the same. `are_alike`: all
    nodes are pods of one size.
    """
    if framework.cluster is None:
        return None
    given = {"cpus": settings.cpus, "gpus": settings.gpus, "memory": settings.memory}
    first = make_size(given, "--")
    other = make_size(others, "worker_node_options:") if others else first
    if are_alike:
        _check_pods(first, other)
    return NodeSizes(
        first=first,
        others=other,
        pretends_gpus=settings.pretend_gpus,
        version=python_ranks.find_version(framework.cluster.library),
    )


def _check_pods(first: NodeSize, others: NodeSize) -> None:
    """All pods of a job are alike: what workers are said to have, the first one must have, too."""
    for name in ("cpus", "gpus", "memory_bytes"):
        has, wants = getattr(first, name), getattr(others, name)
        if wants > has and (has or name == "gpus"):
            word = name.removesuffix("_bytes")
            raise SpecError(
                f"workers are to have more {word} than the head, and all pods of a compute are alike",
                hint=f"give Compute({word}=...) what worker_node_options ask for",
            )

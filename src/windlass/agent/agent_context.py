"""Context of one agent: its node, its folder and the address of its lead. It is the same on every engine.

On one machine all nodes share a folder, and the lead replaces the agent of a lost node. In pods each node has
its own folder, so files travel over links. A lost pod is replaced by another one with the same index.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from windlass.agent.link.endpoints import Place
from windlass.agent.silence_limits import DEFAULT_LIMITS, SilenceLimits
from windlass.plan.plan import Plan
from windlass.wire.job_folder import JobFolder


def _draw_incarnation() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """Identity, files and lead of one agent."""

    plan: Plan
    folder: JobFolder
    index: int
    run_dir: Path  # sockets of this node
    place: Place  # place where node 0's lead listens, or where other nodes reach it
    is_pod: bool = False
    address: str = ""  # address at which other nodes reach this one
    host: str = ""  # name of its machine
    pod: str = ""  # name of its pod, if any
    # differs between agents with the same index
    incarnation: str = field(default_factory=_draw_incarnation)
    given_by: str = ""  # lead that assigned its index (empty: no lead did)
    num_losses: int = 0  # number of earlier nodes with this index
    successor: Place | None = None  # place where node 0 can reach a lead that replaces it
    limits: SilenceLimits = DEFAULT_LIMITS

    @property
    def silence_s(self) -> float:
        """Time without a message after which the lead considers a node lost.

        Between machines, silence may mean a power failure. On one machine it only means a slow process.
        """
        return self.limits.silence_s if self.is_pod else self.limits.fence_s

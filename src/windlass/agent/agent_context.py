"""Where one agent works: its node, its folder, its way to the lead. The same record on every engine.

On one machine all nodes share a folder, and the lead replaces the agent of a lost node. In pods each node is
alone with its folder, so files travel over links, and whoever is lost comes back as another pod of the same
index.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

from windlass.agent.link.endpoints import Place
from windlass.agent.silence_limits import SIGHT, SilenceLimits
from windlass.plan.plan import Plan
from windlass.wire.job_folder import JobFolder


def _draw_incarnation() -> str:
    return os.urandom(8).hex()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """One agent's place in the job."""

    plan: Plan
    folder: JobFolder
    index: int
    run_dir: Path  # sockets of this node
    place: Place  # where the lead listens, or is found
    is_pod: bool = False
    address: str = ""  # where other nodes reach this one
    host: str = ""  # the machine it is on
    pod: str = ""  # its name, where it is one
    incarnation: str = field(default_factory=_draw_incarnation)  # tells nodes of one index apart
    given_by: str = ""  # the lead that gave it its index; empty: it has one of its own
    num_losses: int = 0  # how many nodes of this index there were before
    successor: Place | None = None  # where another lead may be found by node 0
    sight: SilenceLimits = SIGHT

    @property
    def silence_s(self) -> float:
        """How long a node may say nothing before the lead takes it for lost.

        Between machines silence is how a pulled plug looks; on one machine it is only a slow moment.
        """
        return self.sight.silence_s if self.is_pod else self.sight.fence_s

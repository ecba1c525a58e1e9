"""Where one agent works: its node, its folder, its way to the lead. The same record on every engine.

On one machine all nodes share a folder, and a lost node stays lost. In pods each node is alone with its
folder, so files travel over links, and whoever is lost comes back as another pod of the same index.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from windlass.agent.links import Place
from windlass.plan.plan import Plan
from windlass.wire.folder import JobFolder

HEARTBEAT_S = 1.0
FENCE_S = 10.0  # a node that has not heard its lead for so long ends its ranks


@dataclass(frozen=True, slots=True, kw_only=True)
class Station:
    """One agent's place in the job."""

    plan: Plan
    folder: JobFolder
    index: int
    run_dir: Path  # sockets of this node
    place: Place  # where the lead listens, or is found
    is_pod: bool = False
    address: str = ""  # where other nodes reach this one
    host: str = ""  # the machine it is on
    incarnation: str = ""  # tells two nodes of one index apart
    num_losses: int = 0  # how many nodes of this index there were before

    @property
    def silence_s(self) -> float:
        """How long a node may say nothing before the lead takes it for lost.

        Between machines silence is how a pulled plug looks; on one machine it is only a slow moment.
        """
        return 4.0 if self.is_pod else FENCE_S

"""Time limits for agents that receive nothing from each other. They prevent two worlds from overlapping.

The clocks of machines are never compared. Each machine measures durations with its own clock.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

HEARTBEAT_S = 1.0


class Disconnect(enum.Enum):
    """Way in which the lead lost the connection to a node."""

    CLOSED = "closed"  # its machine closed the connection: the agent has exited or has no ranks
    LEAVING = "leaving"  # it announced its exit, and its ranks have their grace period
    CUT = "cut"  # it was silent or the connection broke, so its ranks may still run


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """Time limits of one job's agents."""

    silence_s: float = 4.0  # a node on another machine counts as lost after this silence
    fence_s: float = 10.0  # a node ends its ranks after this silence of its lead
    cut_grace_s: float = 5.0  # limit for the grace period of these ranks
    slack_s: float = 1.0  # margin for data in flight and late timers

    @property
    def ranks_gone_s(self) -> float:
        """Silence of the lead after which a node's ranks are dead, even if its agent is stuck."""
        return self.fence_s + self.cut_grace_s

    @property
    def node_gone_s(self) -> float:
        """Time after which the ranks of a node are certainly dead, counted from the lead's disconnect."""
        return self.ranks_gone_s + self.slack_s

    @property
    def world_gone_s(self) -> float:
        """Silence of the lead after which a node knows that all ranks of that lead are dead.

        In the worst case the lead receives from this node until the node hangs up, and notices the loss
        after `silence_s`. It then disconnects another node, which ends its ranks within `node_gone_s`.
        """
        return self.fence_s + self.silence_s + self.node_gone_s


DEFAULT_LIMITS = SilenceLimits()

"""How long agents that do not hear each other wait before they act: the times that keep two worlds apart.

Numbers only, and what follows from them. Clocks of machines are never compared: each counts on its own.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

HEARTBEAT_S = 1.0


class Parting(enum.Enum):
    """How a node went out of its lead's sight."""

    CLOSED = "closed"  # its machine ended the connection: its agent is dead, or had no ranks left
    LEAVING = "leaving"  # it said that it goes; its ranks have their grace
    CUT = "cut"  # silence, or a connection that broke: its ranks may be running


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """The times of one job's agents."""

    silence_s: float = 4.0  # a node on another machine that says nothing for so long is lost
    fence_s: float = 10.0  # a node that has not heard its lead for so long ends its ranks
    cut_grace_s: float = 5.0  # what ranks have to end then, however long their grace is
    slack_s: float = 1.0  # for what was on its way, and timers that are late

    @property
    def ranks_gone_s(self) -> float:
        """A node's ranks are dead when it has not heard its lead for so long, whatever its agent does."""
        return self.fence_s + self.cut_grace_s

    @property
    def node_gone_s(self) -> float:
        """A lead that hung up on a silent node knows that its ranks are dead after so long."""
        return self.ranks_gone_s + self.slack_s

    @property
    def world_gone_s(self) -> float:
        """A node that has not heard its lead knows that all ranks of that lead are dead after so long.

        The lead may have heard this node until it hung up, missed it after its silence, and lost another
        node at that moment, which then ends its own ranks.
        """
        return self.fence_s + self.silence_s + self.node_gone_s


SIGHT = SilenceLimits()

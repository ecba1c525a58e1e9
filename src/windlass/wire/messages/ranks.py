"""Datagrams from a rank to its agent. The agent forwards all but the outcome to the lead unchanged.

Users' processes import this module, so it imports little.
"""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message, Metric

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.wire.results import ResultHeader

_NONE: Mapping[str, Metric] = {}


class RankRunning(Message, kind="running"):
    """The rank is about to enter the user's code."""

    rank: Count
    attempt: Count
    at_s: float


class RankDone(Message, kind="done"):
    """The rank has returned and waits for its peers."""

    rank: Count
    attempt: Count
    at_s: float


class RankRaised(Message, kind="outcome"):
    """The rank raised or exited. `header` is the first line of its result file."""

    rank: Count
    attempt: Count
    at_s: float
    header: ResultHeader


class RankReport(Message, kind="report"):
    """The rank's progress, as reported with `wl.report`."""

    rank: Count
    attempt: Count
    at_s: float
    step: int | None = None
    total: int | None = None
    metrics: Mapping[str, Metric] = _NONE


RANK_TO_NODE = Direction(
    "rank",
    "node",
    "Datagrams from a rank to the agent of its node.",
    *(RankRunning, RankDone, RankRaised, RankReport),
)

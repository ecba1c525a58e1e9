"""States of ranks, nodes and calls, and the names in a job's timeline.

They are plain text in JSON and in printed output. Programs match on them. Ranks load this module, so it
imports almost nothing.
"""

from __future__ import annotations

import enum


class _TextEnum(str, enum.Enum):
    """Text enum that prints as its value."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]
    __hash__ = str.__hash__  # enum's own hash is slower, because it is a Python function


class RankState(_TextEnum):
    """State of a rank, or its outcome."""

    PENDING = "pending"
    RUNNING = "running"
    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"  # the rank exited by itself with an error
    KILLED = "killed"  # a signal killed the rank
    STOPPED = "stopped"  # Windlass stopped it, because another rank failed or a user ended the job
    LOST = "lost"  # its node was lost


FAILED = frozenset({RankState.RAISED, RankState.EXITED, RankState.KILLED, RankState.LOST})
NOT_ENDED = frozenset({RankState.PENDING, RankState.RUNNING})


class NodeState(_TextEnum):
    """State of a node."""

    PENDING = "pending"
    JOINED = "joined"
    READY = "ready"  # its imports are done
    LEFT = "left"
    LOST = "lost"


class CallState(_TextEnum):
    """State of a call on a compute, or its outcome."""

    QUEUED = "queued"
    RUNNING = "running"
    RETURNED = "returned"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (CallState.QUEUED, CallState.RUNNING)


class MomentName(_TextEnum):
    """Timeline events, in the order in which they occur."""

    SUBMITTED = "submitted"
    QUEUED = "queued"
    SCHEDULED = "scheduled"
    IMAGE = "image"
    CONTAINER = "container"
    AGENT_UP = "agent up"
    NODES_JOINED = "nodes joined"
    IMPORTS_DONE = "imports done"
    RANKS_RUNNING = "ranks running"
    FIRST_STEP = "first step"

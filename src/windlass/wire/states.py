"""Words for where a rank, a node, a call or a job's timeline is: programs match on them, people read them.

In JSON, and wherever they are printed, they are plain text. Imports next to nothing: ranks load it.
"""

from __future__ import annotations

import enum


class _Word(str, enum.Enum):
    """A word that prints as itself."""

    __str__ = str.__str__
    __format__ = str.__format__  # type: ignore[assignment]
    __hash__ = str.__hash__  # enum's own is a function of Python's


class RankState(_Word):
    """Where a rank is, or how it ended."""

    PENDING = "pending"
    RUNNING = "running"
    RETURNED = "returned"
    RAISED = "raised"
    EXITED = "exited"  # by itself, and with an error
    KILLED = "killed"  # by a signal
    STOPPED = "stopped"  # by us, since another failed or somebody ended the job
    LOST = "lost"  # with its node


FAILED = frozenset({RankState.RAISED, RankState.EXITED, RankState.KILLED, RankState.LOST})
NOT_ENDED = frozenset({RankState.PENDING, RankState.RUNNING})


class NodeState(_Word):
    """Where a node is."""

    PENDING = "pending"
    JOINED = "joined"
    READY = "ready"  # its imports are done
    LEFT = "left"
    LOST = "lost"


class CallState(_Word):
    """Where a call on a compute is, or how it ended."""

    QUEUED = "queued"
    RUNNING = "running"
    RETURNED = "returned"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def is_final(self) -> bool:
        return self not in (CallState.QUEUED, CallState.RUNNING)


class MomentName(_Word):
    """What a line of the timeline tells of, in the order in which it happens."""

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

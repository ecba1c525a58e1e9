"""State that a lead hands over to its successor, so that a new node 0 continues where the old one stopped.

All nodes keep a copy. The lead sends it at the start of each attempt, and nodes return it when they join.
This module contains only records and functions on them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from windlass.wire.status import Moment, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """Identity of an agent in an attempt. Its replacement has the same index and a new incarnation."""

    index: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLead:
    """A node's report that it lost its lead."""

    ago_s: float  # seconds since the last message of the lead
    is_closed: bool  # the lead's machine closed the connection, so its agent and ranks are dead


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadHandover:
    """Attempts, their verdicts, and the budgets used so far."""

    attempt: int = -1  # the last one that was started
    restarts_used: int = 0
    losses_used: int = 0
    deadline_at_s: float | None = None  # deadline of the whole job, by the wall clock
    history: tuple[Verdict, ...] = ()
    timeline: tuple[Moment, ...] = ()
    # nodes that took part in that attempt and have not exited permanently
    seats: tuple[AgentIdentity, ...] = ()


def make_memory(num_losses: int) -> LeadHandover:
    """Return the state of a new node 0 that knows only the number of its lost predecessors."""
    return LeadHandover(attempt=num_losses - 1, losses_used=num_losses)


def choose_memory(reported: Iterable[LeadHandover], *, own: LeadHandover) -> LeadHandover:
    """Return the most advanced state that nodes reported, for a lead that replaces another.

    The result does not yet count the loss of the previous lead. A lead that was lost before it sent its
    state to any node appears only in the counts of `own`.
    """
    best = max(
        reported, key=lambda memory: (memory.attempt, len(memory.history)), default=LeadHandover()
    )
    return replace(
        best,
        attempt=max(best.attempt, own.attempt),
        losses_used=max(best.losses_used, own.losses_used - 1),
    )

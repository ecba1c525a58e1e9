"""What a lead must not forget: all nodes keep a copy, so that a new node 0 goes on where the old one stopped.

Records only. The lead hands it out at the start of each attempt; nodes give it back when they join.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from windlass.wire.status import Moment, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """A node that took part in an attempt: the agent that it was, not one that came in its place."""

    index: int
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LostLead:
    """How a node lost the lead that it had."""

    ago_s: float  # since it was heard last
    is_closed: bool  # its machine ended the connection: its agent is dead, and its ranks are


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadHandover:
    """Attempts and budgets so far."""

    attempt: int = -1  # the last one that was begun
    restarts_used: int = 0
    losses_used: int = 0
    deadline_at_s: float | None = None  # of the whole job, by the clock
    history: tuple[Verdict, ...] = ()
    timeline: tuple[Moment, ...] = ()
    seats: tuple[Seat, ...] = ()  # who took part in that attempt and has not left for good


def make_memory(num_losses: int) -> LeadHandover:
    """What a node 0 knows that no other node tells: how many there were before it."""
    return LeadHandover(attempt=num_losses - 1, losses_used=num_losses)


def choose_memory(told: Iterable[LeadHandover], *, own: LeadHandover) -> LeadHandover:
    """What is known of the attempts before a lead that comes after another; its loss is not spent yet.

    Of what nodes remember, that which knows most. A lead that was lost before it told anybody anything
    is only known by the count of them.
    """
    best = max(
        told, key=lambda memory: (memory.attempt, len(memory.history)), default=LeadHandover()
    )
    return replace(
        best,
        attempt=max(best.attempt, own.attempt),
        losses_used=max(best.losses_used, own.losses_used - 1),
    )

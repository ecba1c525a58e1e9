"""At most one world, and at most one agent of an index: what a lead may do while nodes are out of sight.

Two things are held for attempts. None starts while a node that is out of sight may still run ranks of the
one before. And where fewer nodes than all will do, an attempt starts only with more than half of the
agents that took part in the last one: of two halves that do not see each other neither does, and of two
unequal parts only the larger one. An agent that came in the place of another is not one of them. See
docs/failure-model.md.

Where pods have no index of their own, the lead gives indexes out by the same times: one is given again
only when its last holder is known to have no ranks. An agent that comes back gets its own; one that is
not needed yet waits as a spare.

Owned by the lead, which tells it what happens; decides nothing else, and speaks to nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from windlass.agent.silence_limits import Parting, SilenceLimits
from windlass.wire.lead_handover import LeadHandover, LostLead, Seat

_LATER_S = 0.01  # a timer may come a little early


class OneWorld:
    """What a lead knows of ranks that it does not see. `wake` is called when time alone changed that."""

    def __init__(self, own: Seat, sight: SilenceLimits, wake: Callable[[], None]) -> None:
        self.own = own
        self._sight = sight
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._leaving: dict[int, Seat] = {}  # nodes that said so; their ranks have their grace
        self._until_s: dict[Seat, float] = {}  # nodes that were cut off: when their ranks are dead
        self._world_until_s = 0.0  # when all ranks of an earlier lead are dead
        self._lead_until_s = 0.0  # when its own are, where it alone is missing
        self.gone: set[Seat] = set()  # have ended for good

    # -- what is told --------------------------------------------------------------------------

    def lose(self, seat: Seat, parting: Parting) -> None:
        """A node that took part in the last attempt is out of sight."""
        self._leaving.pop(seat.index, None)
        if parting is Parting.LEAVING:
            self._leaving[seat.index] = seat
        elif parting is Parting.CUT:
            self._until_s[seat] = self._wake_in(self._sight.node_gone_s)
        else:
            self._until_s.pop(seat, None)
            self.gone.add(seat)

    def join(self, seat: Seat) -> None:
        """A node is back, and none joins before its ranks are dead."""
        self._until_s.pop(seat, None)

    def find_unseen(self, index: int) -> Seat | None:
        """The agent of a node that leaves or was cut off, and whose ranks are not known to be gone."""
        cut_off = (seat for seat in self._cut_off() if seat.index == index)
        return self._leaving.get(index) or next(cut_off, None)

    def unseen(self) -> list[int]:
        """Nodes that are out of sight and may still have ranks."""
        if not self._leaving and not self._until_s:
            return []
        return sorted(self._leaving.keys() | {seat.index for seat in self._cut_off()})

    def _cut_off(self) -> list[Seat]:
        now_s = self._loop.time()
        return [seat for seat, until_s in self._until_s.items() if until_s > now_s]

    def hear_of_lost_lead(self, last: LeadHandover, lost: LostLead) -> None:
        """What a node tells of the lead of the last attempt."""
        sight = self._sight
        whole_s = sight.node_gone_s if lost.is_closed else sight.world_gone_s
        self._world_until_s = max(self._world_until_s, self._wake_in(whole_s - lost.ago_s))
        if lost.is_closed:
            self.gone.update(seat for seat in last.seats if seat.index == 0)
        else:
            self._lead_until_s = max(self._lead_until_s, self._wake_in(whole_s - lost.ago_s))

    def _wake_in(self, seconds: float) -> float:
        at_s = self._loop.time() + seconds
        self._loop.call_at(at_s + _LATER_S, self._wake)
        return at_s

    # -- what follows --------------------------------------------------------------------------

    def find_obstacle(
        self, last: LeadHandover, here: Collection[Seat], *, is_complete: bool, is_elastic: bool
    ) -> str:
        """Why an attempt must not start with the nodes that are here; empty when it may."""
        last = self.without_gone(last)
        waiting = self._find_waiting(last, here)
        if waiting:
            return f"{waiting} may still be running ranks of attempt {last.attempt}"
        if not is_elastic or last.attempt < 0:
            return ""
        if not last.seats:
            return "" if is_complete else _NOBODY.format(last.attempt)
        num_here = len(set(last.seats) & set(here))
        is_more = 2 * num_here > len(last.seats)
        # the others were replaced one and all, and nobody else can have this half
        is_kept = 2 * num_here == len(last.seats) and self.own in last.seats and is_complete
        if is_more or is_kept:
            return ""
        missing = sorted(set(last.seats) - set(here), key=lambda seat: seat.index)
        return _MINORITY.format(
            num_here, len(last.seats), last.attempt, _name(s.index for s in missing)
        )

    def without_gone(self, memory: LeadHandover) -> LeadHandover:
        """What is remembered, less those that have ended for good since."""
        seats = tuple(seat for seat in memory.seats if seat not in self.gone)
        return memory if seats == memory.seats else replace(memory, seats=seats)

    def _find_waiting(self, last: LeadHandover, here: Collection[Seat]) -> str:
        if late := self.unseen():
            return _name(late)
        missing = set(last.seats) - set(here)
        if (
            not missing or self.own in last.seats
        ):  # the lead of that attempt has missed them one by one
            return ""
        is_lead_alone = all(seat.index == 0 for seat in missing)
        until_s = self._lead_until_s if is_lead_alone else self._world_until_s
        return _name(seat.index for seat in missing) if until_s > self._loop.time() else ""


_MINORITY = (
    "only {} of the {} nodes of attempt {} are here, which is not more than half: beyond a cut in the "
    "network the others may go on with it. Waiting for {} to come back"
)
_NOBODY = "none of the nodes of attempt {} is here: without them it takes all nodes to go on"


def _name(indexes: Iterable[int]) -> str:
    return ", ".join(f"node {index}" for index in sorted(indexes))


@dataclass(slots=True)
class _Holder:
    agent: str
    until_s: float  # when nothing of it can be running any more


class IndexTable:
    """The indexes of one job, as far as this lead, `own`, has given them out or has seen them."""

    def __init__(self, own: str, limits: SilenceLimits) -> None:
        self._own = own
        self._limits = limits
        self._holders: dict[int, _Holder] = {}
        self._none_before_s = 0.0  # agents of a lead before this one may hold any

    def give(self, agent: str, indexes: Iterable[int]) -> int | None:
        """The index that `agent` has, or the first free one of `indexes`; None while there is none."""
        now_s = _now_s()
        for index, holder in self._holders.items():
            if holder.agent == agent:
                holder.until_s = max(holder.until_s, now_s + self._limits.node_gone_s)
                return index
        if now_s < self._none_before_s:
            return None
        for index in indexes:
            if index not in self._holders or self._holders[index].until_s <= now_s:
                # for as long as it takes to come back with it
                self._holders[index] = _Holder(agent, now_s + self._limits.node_gone_s)
                return index
        return None

    def claim(self, index: int, agent: str) -> bool:
        """An agent comes with the index that this lead, or one before, gave it; whether it still has it."""
        holder = self._holders.get(index)
        if holder is not None and holder.agent != agent and holder.until_s > _now_s():
            return False
        self._holders[index] = _Holder(agent, math.inf)
        return True

    def lose(self, index: int, parting: Parting) -> None:
        """The link of whoever has `index` has ended; one that was cut off may run ranks for a while."""
        if index in self._holders:
            wait_s = self._limits.node_gone_s if parting is Parting.CUT else 0.0
            self._holders[index].until_s = _now_s() + wait_s

    def hear_of_lead(self, lead: str) -> None:
        """An agent had `lead` before: if that is another one, its agents have time to come back here."""
        if lead and lead != self._own:
            self._none_before_s = _now_s() + self._limits.world_gone_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()

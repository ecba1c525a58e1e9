"""Rules that keep a job to one world, and an index to one agent, while nodes are unreachable.

An attempt starts only under two conditions:

- No unreachable node may still run ranks of the previous attempt.
- If fewer nodes than all are enough, more than half of the agents of the last attempt must be present.
  After a network partition, two equal halves cannot start an attempt. Of two unequal parts, only the
  larger one can. An agent that replaced another does not count.

See docs/failure-model.md.

If pods have no index of their own, the lead assigns indexes with the same time limits. It reassigns an
index only after the ranks of its last holder must have ended. A returning agent gets its own index. An
agent that is not needed yet waits as a spare.

The lead owns these objects and reports events to them. This module performs no I/O.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace

from windlass.agent.silence_limits import Parting, SilenceLimits
from windlass.wire.lead_handover import LeadHandover, LostLead, Seat

_TIMER_SLACK_S = 0.01  # a timer may fire a little early


class OneWorld:
    """Nodes that a lead cannot reach and that may still run ranks. Calls `wake` when a time limit expires."""

    def __init__(self, own: Seat, limits: SilenceLimits, wake: Callable[[], None]) -> None:
        self.own = own
        self._limits = limits
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._leaving: dict[int, Seat] = {}  # nodes that announced it
        self._until_s: dict[Seat, float] = {}  # when the ranks of each cut-off node are dead
        self._world_until_s = 0.0  # when all ranks of an earlier lead's attempt are dead
        self._lead_until_s = 0.0  # when the ranks of node 0 are dead, if only node 0 is missing
        self.gone: set[Seat] = set()  # have ended permanently

    # -- events ------------------------------------------------------------------------------

    def lose(self, seat: Seat, parting: Parting) -> None:
        """Record the loss of a node that took part in the last attempt."""
        self._leaving.pop(seat.index, None)
        if parting is Parting.LEAVING:
            self._leaving[seat.index] = seat
        elif parting is Parting.CUT:
            self._until_s[seat] = self._wake_in(self._limits.node_gone_s)
        else:
            self._until_s.pop(seat, None)
            self.gone.add(seat)

    def join(self, seat: Seat) -> None:
        """Record that a node is back. Nodes join only after their ranks are dead."""
        self._until_s.pop(seat, None)

    def find_unseen(self, index: int) -> Seat | None:
        """Return the agent of a leaving or cut-off node, or None if its ranks are known to be dead."""
        cut_off = (seat for seat in self._cut_off() if seat.index == index)
        return self._leaving.get(index) or next(cut_off, None)

    def unseen(self) -> list[int]:
        """Return the indexes of unreachable nodes that may still have ranks."""
        if not self._leaving and not self._until_s:
            return []
        return sorted(self._leaving.keys() | {seat.index for seat in self._cut_off()})

    def _cut_off(self) -> list[Seat]:
        now_s = self._loop.time()
        return [seat for seat, until_s in self._until_s.items() if until_s > now_s]

    def hear_of_lost_lead(self, last: LeadHandover, lost: LostLead) -> None:
        """Record a node's report about the lost lead of the last attempt."""
        limits = self._limits
        whole_s = limits.node_gone_s if lost.is_closed else limits.world_gone_s
        self._world_until_s = max(self._world_until_s, self._wake_in(whole_s - lost.ago_s))
        if lost.is_closed:
            self.gone.update(seat for seat in last.seats if seat.index == 0)
        else:
            self._lead_until_s = max(self._lead_until_s, self._wake_in(whole_s - lost.ago_s))

    def _wake_in(self, seconds: float) -> float:
        at_s = self._loop.time() + seconds
        self._loop.call_at(at_s + _TIMER_SLACK_S, self._wake)
        return at_s

    # -- conditions ---------------------------------------------------------------------------

    def find_obstacle(
        self, last: LeadHandover, here: Collection[Seat], *, is_complete: bool, is_elastic: bool
    ) -> str:
        """Return why an attempt must not start with the joined nodes, or an empty string if it may."""
        last = self.without_gone(last)
        waiting = self._find_waiting(last, here)
        if waiting:
            return f"{waiting} may still be running ranks of attempt {last.attempt}"
        if not is_elastic or last.attempt < 0:
            return ""
        if not last.seats:
            return "" if is_complete else _NONE_HERE.format(last.attempt)
        num_here = len(set(last.seats) & set(here))
        is_more = 2 * num_here > len(last.seats)
        # exactly half: all others were replaced, and no other lead can have this half
        is_kept = 2 * num_here == len(last.seats) and self.own in last.seats and is_complete
        if is_more or is_kept:
            return ""
        missing = sorted(set(last.seats) - set(here), key=lambda seat: seat.index)
        return _MINORITY.format(
            num_here, len(last.seats), last.attempt, _name(s.index for s in missing)
        )

    def without_gone(self, memory: LeadHandover) -> LeadHandover:
        """Return the handover state without the agents that have since ended permanently."""
        seats = tuple(seat for seat in memory.seats if seat not in self.gone)
        return memory if seats == memory.seats else replace(memory, seats=seats)

    def _find_waiting(self, last: LeadHandover, here: Collection[Seat]) -> str:
        if late := self.unseen():
            return _name(late)
        missing = set(last.seats) - set(here)
        # the lead of that attempt has recorded each loss itself
        if not missing or self.own in last.seats:
            return ""
        is_lead_alone = all(seat.index == 0 for seat in missing)
        until_s = self._lead_until_s if is_lead_alone else self._world_until_s
        return _name(seat.index for seat in missing) if until_s > self._loop.time() else ""


_MINORITY = (
    "only {} of the {} nodes of attempt {} are here, which is not more than half. The others may still "
    "run the job beyond a network partition. Waiting for {} to come back"
)
_NONE_HERE = "none of the nodes of attempt {} is here. Without them, all nodes must join"


def _name(indexes: Iterable[int]) -> str:
    return ", ".join(f"node {index}" for index in sorted(indexes))


@dataclass(slots=True)
class _Holder:
    agent: str
    until_s: float  # when none of its ranks can be running


class IndexTable:
    """Indexes of one job that the lead `own` has assigned or seen."""

    def __init__(self, own: str, limits: SilenceLimits) -> None:
        self._own = own
        self._limits = limits
        self._holders: dict[int, _Holder] = {}
        self._none_before_s = 0.0  # until then, agents of an earlier lead may hold any index

    def give(self, agent: str, indexes: Iterable[int]) -> int | None:
        """Return the index that `agent` holds or the first free one of `indexes`, or None if none is free."""
        now_s = _now_s()
        for index, holder in self._holders.items():
            if holder.agent == agent:
                holder.until_s = max(holder.until_s, now_s + self._limits.node_gone_s)
                return index
        if now_s < self._none_before_s:
            return None
        for index in indexes:
            if index not in self._holders or self._holders[index].until_s <= now_s:
                # reserved until the agent has had time to return with it
                self._holders[index] = _Holder(agent, now_s + self._limits.node_gone_s)
                return index
        return None

    def claim(self, index: int, agent: str) -> bool:
        """Take an index that this or an earlier lead assigned. Return False if another agent holds it."""
        holder = self._holders.get(index)
        if holder is not None and holder.agent != agent and holder.until_s > _now_s():
            return False
        self._holders[index] = _Holder(agent, math.inf)
        return True

    def lose(self, index: int, parting: Parting) -> None:
        """Record that the holder of `index` disconnected. After a cut it may run ranks for a while."""
        if index in self._holders:
            wait_s = self._limits.node_gone_s if parting is Parting.CUT else 0.0
            self._holders[index].until_s = _now_s() + wait_s

    def hear_of_lead(self, lead: str) -> None:
        """Record the previous lead of an agent. Gives agents of another lead time to return here first."""
        if lead and lead != self._own:
            self._none_before_s = _now_s() + self._limits.world_gone_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()

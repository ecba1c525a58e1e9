"""Which agent is which node, where pods have no index of their own: the lead gives indexes out.

Two agents never hold one index: it is given again only when its last holder is known to have no ranks, by
the same times as in `agent.lead.one_world`. An agent that comes back gets its own; one that is not needed
yet waits as a spare. Speaks to nobody.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from dataclasses import dataclass

from windlass.agent.silence_limits import Parting, SilenceLimits


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

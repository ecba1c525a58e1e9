"""Where the ranks of worlds meet: stores that are opened ahead on node 0, ports that are held for rank 0.

A base of the lead's crews: knows members only as somebody to send orders to.
"""

from __future__ import annotations

from typing import Any

from windlass.agent.port import hold_port
from windlass.agent.warm.worlds import Meeting, World
from windlass.plan.plan import Plan

STORE_S = 30.0


class Meetings:
    """Stores by number; one of them is ready for the next world that wants one."""

    def __init__(self, plan: Plan, address: str) -> None:
        self.plan = plan
        self._address = plan.master_addr or address or "127.0.0.1"
        self._stores: dict[int, Meeting] = {}
        self._ready_store: Meeting | None = None
        self._next = 0

    def _order_node_0(self, order: dict[str, Any]) -> bool:
        """Send node 0 an order; False where it is not here."""
        raise NotImplementedError

    def _meet_at_once(self, world: World, *, wants_store: bool) -> bool:
        """Give a world its meeting; False when its store is not open yet."""
        if wants_store:
            store = self._ready_store
            if store is None or store.port is None:
                return False
            self._ready_store, world.meeting = None, store
            return True
        world.meeting = Meeting(self._count())
        self._hold(world.meeting)
        return True

    def open_store(self, preload: list[str]) -> None:
        """Have a store opened for the next world that wants one; torch, which it is of, is in `preload`."""
        if self._ready_store is not None:
            return
        meeting = Meeting(self._count())
        order = {"type": "open_store", "number": meeting.number, "address": self._address}
        if self._order_node_0({**order, "port": self.plan.master_port, "preload": preload}):
            self._ready_store = self._stores[meeting.number] = meeting

    def _take_store(self, meeting: Meeting, port: int) -> None:
        """A store is open; where there can be none, rank 0 opens one at a port that is held for it."""
        if port:
            meeting.port = port
        else:
            self._hold(meeting)

    def _hold(self, meeting: Meeting) -> None:
        meeting.held = hold_port(self.plan.master_port)
        meeting.port = meeting.held.number

    def _close_meeting(self, world: World) -> None:
        meeting, world.meeting = world.meeting, None
        if meeting is None:
            return
        self._stores.pop(meeting.number, None)
        if meeting.held is not None:
            meeting.held.release()
        else:
            self._order_node_0({"type": "close_store", "number": meeting.number})

    def _count(self) -> int:
        self._next += 1
        return self._next - 1

    def hear_of_store(self, message: dict[str, Any]) -> None:
        """What node 0 says of a store: that it is open, or gone."""
        number = message["number"]
        if message["type"] == "store":
            if number in self._stores:
                self._take_store(self._stores[number], message["port"])
        elif self._ready_store is not None and self._ready_store.number == number:
            self._ready_store = None

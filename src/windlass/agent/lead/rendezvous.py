"""Where the ranks of worlds meet: a store on node 0, or ports that are held for rank 0.

A base of the lead's world pool: knows nodes only as somebody to send orders to.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from windlass.agent.lead.worlds import MeetingPoint, World
from windlass.agent.node.master_port import hold_port
from windlass.plan.plan import Plan
from windlass.wire.message import Message
from windlass.wire.messages.computes import (
    CloseSharedStore,
    OpenSharedStore,
    SharedStoreGone,
    SharedStoreOpened,
)

STORE_S = 30.0
_MAX_CALLS = 500


class WorldRendezvous:
    """One store for all worlds of a framework, a part for each call; renewed when much was left in it."""

    def __init__(self, plan: Plan, address: str) -> None:
        self.plan = plan
        self._address = plan.master_addr or address or "127.0.0.1"
        self._stores: dict[str, MeetingPoint] = {}  # by framework
        self._next = 0
        self._held: set[int] = set()  # ports that wait for a rank 0

    def _order_node_0(self, order: Message) -> bool:
        """Send node 0 an order; False where it is not here."""
        raise NotImplementedError

    def _meet_at_once(self, world: World, *, wants_store: bool) -> bool:
        """Give a world its meeting point; False when the store is not open yet."""
        if wants_store:
            store = self._stores.get(world.plan.framework)
            if store is None or store.port is None:
                return False
            world.meeting = store
            return True
        world.meeting = MeetingPoint(self._count())
        self._hold(world.meeting)
        return True

    def open_store(self, framework: str, preload: Sequence[str]) -> None:
        """Have the store of a framework opened, if it is not; what it is made of is in `preload`."""
        if framework in self._stores:
            return
        meeting = MeetingPoint(self._count())
        order = OpenSharedStore(
            number=meeting.number,
            framework=framework,
            address=self._address,
            port=self._prefer_port(),
            preload=preload,
        )
        if self._order_node_0(order):
            self._stores[framework] = meeting

    def renew_store(self, worlds: Iterable[World], framework: str, preload: Sequence[str]) -> None:
        """Open another store in place of one that has served for long and that no world uses any more."""
        old = self._stores.get(framework)
        if old is None or old.num_calls < _MAX_CALLS or any(w.meeting is old for w in worlds):
            return
        self._order_node_0(CloseSharedStore(number=old.number))
        self._drop_store(framework)
        self.open_store(framework, preload)

    def _drop_store(self, framework: str) -> None:
        self._release(self._stores.pop(framework))

    def drop_stores(self) -> None:
        """No store serves any more, nor a port that is held in place of one."""
        for framework in list(self._stores):
            self._drop_store(framework)

    def _take_store(self, meeting: MeetingPoint, port: int) -> None:
        """A store is open; where there can be none, rank 0 opens one at a port that is held for it."""
        meeting.is_shared = True
        if port:
            meeting.port = port
        else:
            self._hold(meeting)

    def _hold(self, meeting: MeetingPoint) -> None:
        meeting.held = hold_port(self._prefer_port())
        meeting.port = meeting.held.number
        self._held.add(meeting.port)

    def _prefer_port(self) -> int:
        """The usual port, unless it is held for another: a rank that asks for its number would get it."""
        return self.plan.master_port if self.plan.master_port not in self._held else 0

    def _leave_meeting(self, world: World) -> None:
        meeting, world.meeting = world.meeting, None
        if meeting is not None and not meeting.is_shared:
            self._release(meeting)

    def _release(self, meeting: MeetingPoint) -> None:
        if meeting.held is not None:
            meeting.held.release()
            self._held.discard(meeting.held.number)

    def _count(self) -> int:
        self._next += 1
        return self._next - 1

    def hear_of_store(self, _index: int, message: SharedStoreOpened, _body: bytes) -> None:
        """Node 0 says that a store is open."""
        for store in self._stores.values():
            if store.number == message.number:
                self._take_store(store, message.port)

    def hear_of_lost_store(self, _index: int, message: SharedStoreGone, _body: bytes) -> None:
        """Node 0 says that a store is gone."""
        for framework, store in list(self._stores.items()):
            if store.number == message.number:
                self._drop_store(framework)

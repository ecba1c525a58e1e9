"""The roster: which nodes are here, what they have, and whether they are enough to start.

The lead's list. Nodes come, go and come back; what that means for an attempt is the lead's business.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.agent.link.agent_link import Send
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import Seat


@dataclass(slots=True)
class JoinedNode:
    """One node that is here."""

    send: Send
    python: str
    host: str = ""  # the machine it is on, where that has a name of its own
    is_prepared: bool = True  # it has the code and the payload
    has_imported: bool = False
    incarnation: str = ""  # which agent of its index it is


class Roster:
    """Nodes by index."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._members: dict[int, JoinedNode] = {}
        self.lost: set[int] = set()  # were here, and are not back

    def add(self, index: int, member: JoinedNode) -> None:
        self._members[index] = member
        self.lost.discard(index)

    def drop(self, index: int) -> JoinedNode | None:
        """Forget a node that is gone; None when it was not here."""
        member = self._members.pop(index, None)
        if member is not None:
            self.lost.add(index)
        return member

    def __contains__(self, index: object) -> bool:
        return index in self._members

    def __getitem__(self, index: int) -> JoinedNode:
        return self._members[index]

    def here(self) -> list[int]:
        return sorted(self._members)

    def prepared(self) -> list[int]:
        return [index for index in self.here() if self._members[index].is_prepared]

    def seats(self) -> list[Seat]:
        """The agents that are here and could take part."""
        return [self.seat(index) for index in self.prepared()]

    def seat(self, index: int) -> Seat:
        return Seat(index=index, incarnation=self._members[index].incarnation)

    def missing(self) -> list[int]:
        return [node.index for node in self._plan.nodes if node.index not in self._members]

    @property
    def is_complete(self) -> bool:
        return len(self.prepared()) == len(self._plan.nodes)

    @property
    def is_enough(self) -> bool:
        """Whether an attempt may start without the others."""
        prepared = self.prepared()
        return len(prepared) >= self._plan.min_nodes and 0 in prepared

    @property
    def have_all_imported(self) -> bool:
        return not self.missing() and all(m.has_imported for m in self._members.values())

    def name(self, index: int) -> str:
        """A node's name, with the machine it is on."""
        name = self._plan.nodes[index].name
        host = self._members[index].host if index in self._members else ""
        return f"{name} (on {host})" if host else name

"""What a lead is to those that bring it nodes and clients: the same for a job and for a compute.

The two are `agent.lead.job_lead` and `agent.lead.call_lead`; docs/architecture.md says what they are made of.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING, Protocol

from windlass.agent.lead.node_table import NodeTable, SendBody
from windlass.agent.silence_limits import Parting
from windlass.wire.lead_handover import LeadHandover, Seat
from windlass.wire.message import Message
from windlass.wire.messages.jobs import JoinLead
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.agent.link.payload_parts import Ship


class Lead(Protocol):
    """Decides for all nodes what their ranks do."""

    nodes: NodeTable

    async def run(self) -> None:
        """To the end; afterwards the status is final."""

    async def leave(self) -> None:
        """This node is told to stop, and another lead may follow."""

    @property
    def has_lost_nodes(self) -> bool:
        """Whether a lead that comes after this one should hear its farewell."""

    def join(
        self, index: int, send: SendBody, about: JoinLead, *, ship: Ship | None = None
    ) -> None:
        """A node is there, with what it knows of the lead before this one."""

    def receive(self, index: int, message: Message, body: bytes = b"") -> None:
        """Something a node says."""

    def lose(self, index: int, why: str = "", *, parting: Parting = Parting.CLOSED) -> None:
        """A node is gone."""

    def part(self, index: int) -> None:
        """The ranks of a node that leaves are dead, as it says itself, and it will never have others."""

    def hear_farewell(self, seat: Seat, memory: LeadHandover | None) -> None:
        """A node that had been out of sight ends for good, and has no ranks; others may know what it knew."""

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Somebody wants all of it to end, which ranks hear as `signum`; asked again, it may end at once."""

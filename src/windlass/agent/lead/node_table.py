"""Table of the nodes that have joined a lead, and handlers for their reports about themselves.

Shared by job leads and call leads. Keeps the status of nodes up to date. `agent.lead.world` and the lead
decide what a joined or lost node means for ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.lead.one_world import OneWorld
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.silence_limits import SIGHT, Parting, SilenceLimits
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import Seat
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.jobs import ImportsReady, JoinLead, NodeTrouble
from windlass.wire.messages.link import Heartbeat
from windlass.wire.states import MomentName, NodeState

if TYPE_CHECKING:
    from windlass.agent.link.payload_parts import Ship


logger = logging.getLogger(__name__)

SendBody = Callable[[Message, bytes], None]


@dataclass(slots=True)
class JoinedNode:
    """A node that has joined."""

    send: SendBody
    python: str = ""
    host: str = ""  # name of its machine, if the machine has its own name
    address: str = ""  # address at which other nodes reach it
    incarnation: str = ""  # identifies the agent among those that had its index
    is_prepared: bool = True  # it has the job's code and payload
    has_imported: bool = False
    ship: Ship | None = None  # sends large payloads, if it is on another machine
    digests: dict[str, str] = field(default_factory=dict)  # of its projects, by key
    setup: str = ""  # digest of its completed set-up
    setup_error: str = ""
    setup_hint: str = ""


class NodeTable:
    """Joined nodes by index. Calls `wake` after every change."""

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        wake: Callable[[], None],
        *,
        incarnation: str = "",
        sight: SilenceLimits = SIGHT,
    ) -> None:
        self.plan = plan
        self.sight = sight
        self.lost: set[int] = set()  # joined once and have not come back
        self.one_world = OneWorld(Seat(index=0, incarnation=incarnation), sight, wake=wake)
        self._status_writer = status_writer
        self._wake = wake
        self._nodes: dict[int, JoinedNode] = {}

    # -- coming and going ----------------------------------------------------------------------

    def join(self, index: int, send: SendBody, about: JoinLead, ship: Ship | None = None) -> None:
        """Add a node, or replace its earlier agent."""
        self._nodes[index] = JoinedNode(
            send=send,
            python=about.python,
            host=about.host,
            address=about.address,
            incarnation=about.incarnation,
            is_prepared=about.is_prepared,
            ship=ship,
        )
        self.lost.discard(index)
        self.one_world.join(self.seat(index))
        self._status_writer.set_node(
            index,
            state=NodeState.JOINED,
            pid=about.pid,
            python=about.python,
            host=about.host,
            pod=about.pod,
        )
        self._wake()

    def prepare(self, index: int) -> None:
        """Record that a node has the job's code and payload."""
        if index in self._nodes:
            self._nodes[index].is_prepared = True
        self._wake()

    def lose(self, index: int, why: str, parting: Parting, *, may_run: bool) -> JoinedNode | None:
        """Remove a lost node and return it, or None if it had not joined.

        `may_run` means that it may have ranks. A cut-off node without ranks delays no later attempt.
        """
        name = self.name(index)
        node = self._nodes.pop(index, None)
        self._wake()
        if node is None:
            seat = self.one_world.find_unseen(index)
            if seat is not None and parting is not Parting.LEAVING:
                self.one_world.lose(seat, parting)
            return None
        if may_run or parting is not Parting.CUT:
            self.one_world.lose(Seat(index=index, incarnation=node.incarnation), parting)
        self.lost.add(index)
        logger.warning("%s is gone%s", name, f": {why}" if why else "")
        # nodes that leave after the end are not lost
        if self.knows(index) and not self._status_writer.status.phase.is_final:
            self._status_writer.set_node(index, state=NodeState.LOST)
        return node

    def part(self, seat: Seat) -> None:
        """Record an agent's report that it ends permanently and has no ranks."""
        self.one_world.lose(seat, Parting.CLOSED)
        self._wake()

    def resize(self, plan: Plan) -> None:
        """Change the expected nodes to those of `plan`."""
        self.plan = plan
        self._status_writer.resize(plan)
        self._wake()

    # -- joined nodes --------------------------------------------------------------------------

    def knows(self, index: int) -> bool:
        """Return whether the plan has a node with this index."""
        return 0 <= index < len(self.plan.nodes)

    def __contains__(self, index: object) -> bool:
        return index in self._nodes

    def __getitem__(self, index: int) -> JoinedNode:
        return self._nodes[index]

    def get(self, index: int) -> JoinedNode | None:
        return self._nodes.get(index)

    def here(self) -> list[int]:
        return sorted(self._nodes)

    def missing(self, indexes: Iterable[int] | None = None) -> list[int]:
        """Return the nodes of `indexes` (default: all expected nodes) that have not joined."""
        wanted = [node.index for node in self.plan.nodes] if indexes is None else indexes
        return [index for index in wanted if index not in self._nodes]

    def prepared(self) -> list[int]:
        return [index for index in self.here() if self._nodes[index].is_prepared]

    def seat(self, index: int) -> Seat:
        return Seat(index=index, incarnation=self._nodes[index].incarnation)

    def seats(self) -> list[Seat]:
        """Return the agents that have joined and can take part."""
        return [self.seat(index) for index in self.prepared()]

    @property
    def is_complete(self) -> bool:
        return len(self.prepared()) == len(self.plan.nodes)

    @property
    def is_enough(self) -> bool:
        """True if an attempt can start without the other nodes."""
        prepared = self.prepared()
        return len(prepared) >= self.plan.min_nodes and 0 in prepared

    @property
    def have_all_imported(self) -> bool:
        return not self.missing() and all(node.has_imported for node in self._nodes.values())

    def name(self, index: int) -> str:
        """Return the name of a node, with its machine if that is known."""
        name = self.plan.nodes[index].name if self.knows(index) else f"node {index}"
        host = self._nodes[index].host if index in self._nodes else ""
        return f"{name} (on {host})" if host else name

    # -- orders --------------------------------------------------------------------------------

    def order(self, index: int, order: Message, body: bytes = b"") -> bool:
        """Send an order to a node. Return False if it has not joined."""
        if index not in self._nodes:
            return False
        self._nodes[index].send(order, body)
        return True

    def send_all(self, message: Message) -> None:
        for index in self.here():
            self.order(index, message)


class NodeNews:
    """Handlers for node-level reports: finished imports and problems. Shared by job leads and call leads."""

    def __init__(self, nodes: NodeTable, status_writer: StatusWriter) -> None:
        self._nodes = nodes
        self._status_writer = status_writer
        self.handlers: Handlers = {
            ImportsReady: self._take_ready,
            NodeTrouble: self._take_trouble,
            Heartbeat: lambda *_: None,
        }

    def _take_ready(self, index: int, message: ImportsReady, _body: bytes) -> None:
        if message.is_complete and index in self._nodes:
            self._nodes[index].has_imported = True
            self._status_writer.set_node(index, state=NodeState.READY)
        if self._nodes.have_all_imported:
            self._status_writer.mark(MomentName.IMPORTS_DONE)
        if message.culprit:
            self._warn(
                names.REASON_FORK_UNSAFE,
                f"importing {message.culprit} started {message.num_threads - 1} thread(s), so ranks are "
                f"spawned instead of forked. To fork them, remove it from --preload",
            )
        for name, why in message.missing.items():
            self._warn(names.REASON_IMPORTING, f"{name} could not be preloaded: {why}")

    def _take_trouble(self, _index: int, message: NodeTrouble, _body: bytes) -> None:
        self._warn(message.reason, message.message)

    def _warn(self, reason: str, message: str) -> None:
        self._status_writer.add_condition("warning", reason, message)

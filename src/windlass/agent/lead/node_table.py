"""The nodes that have joined a lead: which are here, what each has, and what they tell of themselves.

The same for a job and for a compute; it keeps what the status says of nodes. What it means for ranks that
a node comes or goes is the business of `agent.lead.world` and of the lead.
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
    """One node that is here."""

    send: SendBody
    python: str = ""
    host: str = ""  # the machine it is on, where that has a name of its own
    address: str = ""  # where other nodes reach it
    incarnation: str = ""  # which agent of its index it is
    is_prepared: bool = True  # it has the job's code and payload
    has_imported: bool = False
    ship: Ship | None = None  # for large payloads of calls, where it is on another machine
    digests: dict[str, str] = field(default_factory=dict)  # of the projects it has
    setup: str = ""  # digest of the set-up it has done
    setup_error: str = ""
    setup_hint: str = ""


class NodeTable:
    """Nodes by index. `wake` is called whenever something changed."""

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
        self.lost: set[int] = set()  # were here, and are not back
        self.one_world = OneWorld(Seat(index=0, incarnation=incarnation), sight, wake=wake)
        self._status_writer = status_writer
        self._wake = wake
        self._nodes: dict[int, JoinedNode] = {}

    # -- coming and going ----------------------------------------------------------------------

    def join(self, index: int, send: SendBody, about: JoinLead, ship: Ship | None = None) -> None:
        """A node is there."""
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
        """A node has the job's code and payload now."""
        if index in self._nodes:
            self._nodes[index].is_prepared = True
        self._wake()

    def lose(self, index: int, why: str, parting: Parting, *, may_run: bool) -> JoinedNode | None:
        """A node is gone; None when it was not here. `may_run`: it has ranks, as far as is known.

        One that was cut off and has no ranks is not waited for.
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
        # after the end nodes leave because they were told to
        if self.knows(index) and not self._status_writer.status.phase.is_final:
            self._status_writer.set_node(index, state=NodeState.LOST)
        return node

    def part(self, seat: Seat) -> None:
        """An agent ends for good and has no ranks, as it says itself."""
        self.one_world.lose(seat, Parting.CLOSED)
        self._wake()

    def resize(self, plan: Plan) -> None:
        """The nodes there should be from now on."""
        self.plan = plan
        self._status_writer.resize(plan)
        self._wake()

    # -- who is here ---------------------------------------------------------------------------

    def knows(self, index: int) -> bool:
        """Whether there should be such a node."""
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
        """Those of `indexes`, or of all that there should be, that are not here."""
        wanted = [node.index for node in self.plan.nodes] if indexes is None else indexes
        return [index for index in wanted if index not in self._nodes]

    def prepared(self) -> list[int]:
        return [index for index in self.here() if self._nodes[index].is_prepared]

    def seat(self, index: int) -> Seat:
        return Seat(index=index, incarnation=self._nodes[index].incarnation)

    def seats(self) -> list[Seat]:
        """The agents that are here and could take part."""
        return [self.seat(index) for index in self.prepared()]

    @property
    def is_complete(self) -> bool:
        return len(self.prepared()) == len(self.plan.nodes)

    @property
    def is_enough(self) -> bool:
        """Whether an attempt may start without the others."""
        prepared = self.prepared()
        return len(prepared) >= self.plan.min_nodes and 0 in prepared

    @property
    def have_all_imported(self) -> bool:
        return not self.missing() and all(node.has_imported for node in self._nodes.values())

    def name(self, index: int) -> str:
        """A node's name, with the machine it is on."""
        name = self.plan.nodes[index].name if self.knows(index) else f"node {index}"
        host = self._nodes[index].host if index in self._nodes else ""
        return f"{name} (on {host})" if host else name

    # -- orders --------------------------------------------------------------------------------

    def order(self, index: int, order: Message, body: bytes = b"") -> bool:
        """Send a node an order; False where it is not here."""
        if index not in self._nodes:
            return False
        self._nodes[index].send(order, body)
        return True

    def tell_all(self, message: Message) -> None:
        for index in self.here():
            self.order(index, message)


class NodeNews:
    """Takes what nodes tell of themselves."""

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
                f"importing {message.culprit} started {message.num_threads - 1} thread(s): "
                f"ranks are spawned, not forked; leave it out of --preload to fork again",
            )
        for name, why in message.missing.items():
            self._warn(names.REASON_IMPORTING, f"{name} could not be preloaded: {why}")

    def _take_trouble(self, _index: int, message: NodeTrouble, _body: bytes) -> None:
        self._warn(message.reason, message.message)

    def _warn(self, reason: str, message: str) -> None:
        self._status_writer.add_condition("warning", reason, message)

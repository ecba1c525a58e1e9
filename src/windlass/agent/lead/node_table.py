"""Nodes of a lead: the table of joined nodes, and the rules for starting an attempt while some are missing.

Shared by job leads and call leads. An attempt starts only under two conditions:

- No unreachable node can still be running ranks of the previous attempt.
- If an attempt can start without all nodes, more than half of the agents of the last attempt must be present.
  After a network partition, two equal halves cannot start an attempt. Of two unequal parts, only the
  larger one can. An agent that replaced another does not count.

See docs/failure-model.md.

If pods do not know their index, the lead assigns indexes under the same time limits. It reassigns an
index only after the ranks of its last holder must have ended. A returning agent gets its own index. An
agent that is not needed yet waits as a spare.

This module performs no I/O except through the status writer. `agent.lead.world` and the lead decide what a
joined or lost node means for ranks.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.silence_limits import DEFAULT_LIMITS, Disconnect, SilenceLimits
from windlass.errors import count_noun
from windlass.plan.plan import Plan
from windlass.wire.lead_handover import AgentIdentity, LeadHandover, LostLead
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.jobs import ImportsReady, JoinLead, NodeTrouble
from windlass.wire.messages.link import Heartbeat
from windlass.wire.states import MomentName, NodeState

if TYPE_CHECKING:
    from windlass.agent.link.payload_parts import Ship

logger = logging.getLogger(__name__)
_TIMER_SLACK_S = 0.01  # a timer may fire a little early


class OneWorld:
    """Unreachable nodes that may still run ranks. Calls `wake` when a time limit expires."""

    def __init__(self, own: AgentIdentity, limits: SilenceLimits, wake: Callable[[], None]) -> None:
        self.own = own
        self._limits = limits
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._leaving: dict[int, AgentIdentity] = {}  # nodes that announced their exit
        self._until_s: dict[
            AgentIdentity, float
        ] = {}  # when the ranks of each cut-off node are dead
        self._world_until_s = 0.0  # when all ranks of an earlier lead's attempt are dead
        self._lead_until_s = 0.0  # when the ranks of node 0 are dead, if only node 0 is missing
        self.gone: set[AgentIdentity] = set()  # agents that have ended permanently

    # -- events ------------------------------------------------------------------------------

    def lose(self, seat: AgentIdentity, disconnect: Disconnect) -> None:
        """Record the loss of a node that took part in the last attempt."""
        self._leaving.pop(seat.index, None)
        if disconnect is Disconnect.LEAVING:
            self._leaving[seat.index] = seat
        elif disconnect is Disconnect.CUT:
            self._until_s[seat] = self._wake_in(self._limits.node_gone_s)
        else:
            self._until_s.pop(seat, None)
            self.gone.add(seat)

    def join(self, seat: AgentIdentity) -> None:
        """Record that a node has reconnected. Nodes join only after their ranks are dead."""
        self._until_s.pop(seat, None)

    def find_unreachable(self, index: int) -> AgentIdentity | None:
        """Return the agent of a leaving or cut-off node, or None if its ranks are known to be dead."""
        cut_off = (seat for seat in self._cut_off() if seat.index == index)
        return self._leaving.get(index) or next(cut_off, None)

    def unreachable(self) -> list[int]:
        """Return the indexes of unreachable nodes that may still have ranks."""
        if not self._leaving and not self._until_s:
            return []
        return sorted(self._leaving.keys() | {seat.index for seat in self._cut_off()})

    def _cut_off(self) -> list[AgentIdentity]:
        now_s = self._loop.time()
        return [seat for seat, until_s in self._until_s.items() if until_s > now_s]

    def record_lost_lead(self, last: LeadHandover, lost: LostLead) -> None:
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
        self,
        last: LeadHandover,
        here: Collection[AgentIdentity],
        *,
        is_complete: bool,
        is_elastic: bool,
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
        num_joined = len(set(last.seats) & set(here))
        is_more = 2 * num_joined > len(last.seats)
        # Exactly half: all other nodes were replaced, and no other lead can have the half with this agent.
        is_kept = 2 * num_joined == len(last.seats) and self.own in last.seats and is_complete
        if is_more or is_kept:
            return ""
        missing = sorted(set(last.seats) - set(here), key=lambda seat: seat.index)
        return _MINORITY.format(
            num_joined, len(last.seats), last.attempt, _name(s.index for s in missing)
        )

    def without_gone(self, memory: LeadHandover) -> LeadHandover:
        """Return the handover state without the agents that have since ended permanently."""
        seats = tuple(seat for seat in memory.seats if seat not in self.gone)
        return memory if seats == memory.seats else replace(memory, seats=seats)

    def _find_waiting(self, last: LeadHandover, here: Collection[AgentIdentity]) -> str:
        if late := self.unreachable():
            return _name(late)
        missing = set(last.seats) - set(here)
        # the lead of that attempt has recorded each loss itself
        if not missing or self.own in last.seats:
            return ""
        is_lead_alone = all(seat.index == 0 for seat in missing)
        until_s = self._lead_until_s if is_lead_alone else self._world_until_s
        return _name(seat.index for seat in missing) if until_s > self._loop.time() else ""


_MINORITY = (
    "only {} of the {} nodes of attempt {} are connected, which is not more than half. The others may still "
    "run the job beyond a network partition. Waiting for {} to come back"
)
_NONE_HERE = "none of the nodes of attempt {} is connected. Without them, all nodes must join"


def _name(indexes: Iterable[int]) -> str:
    return ", ".join(f"node {index}" for index in sorted(indexes))


@dataclass(slots=True)
class _Holder:
    agent: str
    until_s: float  # time after which its ranks are certainly dead


class IndexTable:
    """Indexes of one job that the lead `own` has assigned or seen."""

    def __init__(self, own: str, limits: SilenceLimits) -> None:
        self._own = own
        self._limits = limits
        self._holders: dict[int, _Holder] = {}
        self._none_before_s = (
            0.0  # assign none before, because agents of an earlier lead may hold any index
        )

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
                # reserved until the agent has had time to reconnect with it
                self._holders[index] = _Holder(agent, now_s + self._limits.node_gone_s)
                return index
        return None

    def claim(self, index: int, agent: str) -> bool:
        """Confirm an index from this or an earlier lead. Return False if another agent holds it."""
        holder = self._holders.get(index)
        if holder is not None and holder.agent != agent and holder.until_s > _now_s():
            return False
        self._holders[index] = _Holder(agent, math.inf)
        return True

    def lose(self, index: int, disconnect: Disconnect) -> None:
        """Record that the holder of `index` disconnected. After a cut, its ranks may run for a while."""
        if index in self._holders:
            wait_s = self._limits.node_gone_s if disconnect is Disconnect.CUT else 0.0
            self._holders[index].until_s = _now_s() + wait_s

    def record_lead(self, lead: str) -> None:
        """Record the previous lead of an agent. Agents of another lead get time to reconnect first."""
        if lead and lead != self._own:
            self._none_before_s = _now_s() + self._limits.world_gone_s


def _now_s() -> float:
    return asyncio.get_running_loop().time()


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
    ship: Ship | None = None  # sends large payloads if the node is on another machine
    digests: dict[str, str] = field(default_factory=dict)  # digests of its projects, by key
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
        limits: SilenceLimits = DEFAULT_LIMITS,
    ) -> None:
        self.plan = plan
        self.limits = limits
        self.lost: set[int] = set()  # nodes that joined once and have not reconnected
        self.one_world = OneWorld(
            AgentIdentity(index=0, incarnation=incarnation), limits, wake=wake
        )
        self._status_writer = status_writer
        self._wake = wake
        self._nodes: dict[int, JoinedNode] = {}

    # -- joining and leaving -------------------------------------------------------------------

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

    def lose(
        self, index: int, why: str, disconnect: Disconnect, *, may_run: bool
    ) -> JoinedNode | None:
        """Remove a lost node and return it, or None if it had not joined.

        `may_run` means that it may have ranks. A node without ranks that was cut off delays no attempt.
        """
        name = self.describe(index)
        node = self._nodes.pop(index, None)
        self._wake()
        if node is None:
            seat = self.one_world.find_unreachable(index)
            if seat is not None and disconnect is not Disconnect.LEAVING:
                self.one_world.lose(seat, disconnect)
            return None
        if may_run or disconnect is not Disconnect.CUT:
            self.one_world.lose(
                AgentIdentity(index=index, incarnation=node.incarnation), disconnect
            )
        self.lost.add(index)
        logger.warning("%s is gone%s", name, f": {why}" if why else "")
        # nodes that leave after the end are not lost
        if self.knows(index) and not self._status_writer.status.phase.is_final:
            self._status_writer.set_node(index, state=NodeState.LOST)
        return node

    def record_exit(self, seat: AgentIdentity) -> None:
        """Record an agent's report that it ends permanently and has no ranks."""
        self.one_world.lose(seat, Disconnect.CLOSED)
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

    def joined(self) -> list[int]:
        return sorted(self._nodes)

    def missing(self, indexes: Iterable[int] | None = None) -> list[int]:
        """Return the nodes of `indexes` (default: all expected nodes) that have not joined."""
        wanted = [node.index for node in self.plan.nodes] if indexes is None else indexes
        return [index for index in wanted if index not in self._nodes]

    def prepared(self) -> list[int]:
        return [index for index in self.joined() if self._nodes[index].is_prepared]

    def seat(self, index: int) -> AgentIdentity:
        return AgentIdentity(index=index, incarnation=self._nodes[index].incarnation)

    def seats(self) -> list[AgentIdentity]:
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

    def describe(self, index: int) -> str:
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
        for index in self.joined():
            self.order(index, message)


class NodeHandlers:
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
                f"importing {message.culprit} started {count_noun(message.num_threads - 1, 'thread')}, "
                f"so ranks are spawned instead of forked. To fork them, remove it from --preload",
            )
        for name, why in message.missing.items():
            self._warn(names.REASON_IMPORTING, f"{name} could not be preloaded: {why}")

    def _take_trouble(self, _index: int, message: NodeTrouble, _body: bytes) -> None:
        self._warn(message.reason, message.message)

    def _warn(self, reason: str, message: str) -> None:
        self._status_writer.add_condition("warning", reason, message)

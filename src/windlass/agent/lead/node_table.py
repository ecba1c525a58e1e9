"""The nodes of a warm lead: which are here, what each has, and how many there should be.

A base of its world pool. Worlds and calls are not known here.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import math
import shutil
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from windlass import names
from windlass.agent.changes import Changes
from windlass.agent.lead.failure import make_job_verdict
from windlass.agent.lead.rendezvous import WorldRendezvous
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.silence_limits import SIGHT, Parting, SilenceLimits
from windlass.plan.plan import Plan
from windlass.plan.topology import make_nodes
from windlass.wire.lead_handover import LeadHandover, Seat
from windlass.wire.message import Message
from windlass.wire.messages.computes import SetUpNode
from windlass.wire.messages.jobs import EndAgent, JoinLead
from windlass.wire.states import NodeState
from windlass.wire.status import FailureKind, Verdict

logger = logging.getLogger(__name__)

_KEPT_WORLDS = 200
_LATER_S = 0.01  # a timer may come a little early

SendBody = Callable[..., None]
Ship = Callable[[str, str], Awaitable[None]]  # a payload's key and its file


@dataclass(slots=True)
class NodeEntry:
    """One node that is here."""

    send: SendBody
    ship: Ship | None = None  # for large payloads, where it is on another machine
    host: str = ""
    address: str = ""
    digests: dict[str, str] = field(default_factory=dict)  # of the projects it has
    setup: str = ""  # digest of the set-up it has done
    setup_error: str = ""
    setup_hint: str = ""


class NodeTable(WorldRendezvous):
    """Nodes by index."""

    def __init__(
        self,
        plan: Plan,
        status_writer: StatusWriter,
        *,
        address: str = "",
        sight: SilenceLimits = SIGHT,
    ) -> None:
        super().__init__(plan, address)
        self._sight = sight
        self._unseen: dict[int, float] = {}  # out of sight: until when ranks of theirs may live
        self._status_writer = status_writer
        self._first_nodes = plan.nodes  # as the plan's file has them
        self._members: dict[int, NodeEntry] = {}
        self._changed = Changes()
        self.keeps_logs = False  # of other nodes, where they do not share a folder
        self.stopped: Verdict | None = None
        self.must_hurry = False
        self.stop_signal: int = signal.SIGTERM

    def knows(self, index: int) -> bool:
        return 0 <= index < len(self.plan.nodes)

    def is_here(self, index: int) -> bool:
        return index in self._members

    def missing(self, indexes: list[int]) -> list[int]:
        return [index for index in indexes if index not in self._members]

    def join(
        self, index: int, send: SendBody, about: JoinLead, *, ship: Ship | None = None
    ) -> None:
        """A node is there."""
        self._members[index] = NodeEntry(
            send=send, ship=ship, host=about.host, address=about.address
        )
        self._status_writer.set_node(
            index, state=NodeState.JOINED, pid=about.pid, python=about.python, host=about.host
        )
        self._changed.set()

    def prepare(self, index: int) -> None:
        """Of no matter here: code comes with calls."""

    def lose(self, index: int, why: str = "", *, parting: Parting = Parting.CLOSED) -> None:
        """A node is gone, and with it its ranks of every world; where it was cut off, a little later."""
        self._lose_sight(index, parting)
        self._changed.set()  # also of one that had left: a call may wait for its ranks to be gone
        if self._members.pop(index, None) is None:
            return
        logger.warning("node %s is gone%s", index, f": {why}" if why else "")
        if self.knows(index):
            self._status_writer.set_node(index, state=NodeState.LOST)

    def _lose_sight(self, index: int, parting: Parting) -> None:
        if parting is Parting.LEAVING and index in self._members:
            self._unseen[index] = math.inf
        elif parting is Parting.CUT and (index in self._members or index in self._unseen):
            loop = asyncio.get_running_loop()
            self._unseen[index] = loop.time() + self._sight.node_gone_s
            loop.call_later(self._sight.node_gone_s + _LATER_S, self._changed.set)
        elif parting is Parting.CLOSED:
            self._unseen.pop(index, None)

    def part(self, index: int) -> None:
        """The ranks of a node that leaves are dead, as it says itself."""
        self._unseen.pop(index, None)
        self._changed.set()

    def hear_farewell(self, seat: Seat, _memory: LeadHandover | None) -> None:
        """A node that had been out of sight ends for good, and has no ranks."""
        self.part(seat.index)

    def unseen(self) -> list[int]:
        """Nodes that are out of sight and may still have ranks."""
        now_s = asyncio.get_running_loop().time()
        return sorted(index for index, until_s in self._unseen.items() if until_s > now_s)

    def scale(self, num_nodes: int) -> None:
        """So many nodes from now on; those beyond are told that they are no longer needed."""
        self.plan = self.plan.with_nodes(
            make_nodes(num_nodes, self.plan.nodes[0].num_ranks, job_name=self.plan.name)
        )
        self._status_writer.resize(self.plan)
        for index in [i for i in self._members if i >= num_nodes and not self.keeps_logs]:
            self._members[index].send(EndAgent())  # pods are ended by whoever made them
        self._changed.set()

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Somebody wants all of it to end, which ranks hear as `signum`."""
        if self.stopped is None:
            self.stop_signal = signum
            self.stopped = make_job_verdict(self.plan, kind, message, at_s=time.time())
        self.must_hurry |= now
        self._changed.set()

    def _order_node_0(self, order: Message) -> bool:
        if 0 not in self._members:
            return False
        self._members[0].send(order)
        return True

    # -- small things --------------------------------------------------------------------------

    def keep_log(self, number: int, rank: int, lines: bytes) -> None:
        """Lines of a rank on another machine, where all readers find them."""
        folder = self._status_writer.folder
        folder.make_attempt(number)
        with folder.log(number, rank).open("ab") as file:
            if file.tell() + len(lines) <= names.MAX_LOG_BYTES:
                file.write(lines)

    def prune_logs(self, number: int) -> None:
        shutil.rmtree(self._status_writer.folder.attempt(number - _KEPT_WORLDS), ignore_errors=True)


def make_setup(
    env: Mapping[str, str | None], steps: Sequence[Any], hidden: Mapping[str, str] | None = None
) -> SetUpNode:
    """The order to set up nodes; nothing to do has an empty digest.

    `hidden` are values of secrets that changed since the nodes started: told to nodes, shown to nobody.
    """
    told = {"env": env, "steps": steps, "hidden": hidden or {}}
    text = json.dumps(told, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest() if any(told.values()) else ""
    return SetUpNode(env=env, steps=steps, hidden=hidden or {}, digest=digest)

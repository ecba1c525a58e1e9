"""Who connects to the lead: nodes that join, clients that hold a lease, want files or have something to say.

Knows who is on which link. What they say is handed to the lead; which files they get is decided here.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import re
import signal
import socket
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from windlass import names, records
from windlass.agent.agent_context import AgentContext
from windlass.agent.lead.index_table import IndexTable
from windlass.agent.lead.job_lead import Lead
from windlass.agent.lead.lead_handover import LeadHandover, LostLead, Seat
from windlass.agent.link.agent_link import Link
from windlass.agent.node.folder_sender import FolderSender
from windlass.agent.node.inputs import Inputs
from windlass.agent.silence_limits import HEARTBEAT_S, Parting
from windlass.errors import BundleError, ProtocolError
from windlass.wire.file_sync import (
    PIECE,
    READ_ALL,
    Receiver,
    Sender,
    is_from_lead,
    is_from_ranks,
    is_input,
    measure_files,
    read_piece,
    read_sizes,
)
from windlass.wire.frames import Frame, Header
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.agent.lead.call_lead import CallLead
    from windlass.agent.lead.call_server import CallServer

_DEPUTY = 1  # keeps a copy of what node 0's ranks left, for the node 0 that may come after it
READER_SILENCE_S = 60.0
# a client has to find the lead before it can hold a lease, however short that one is
_FIRST_HELLO_S = 60.0
_RANK_FILE = re.compile(r"attempt-\d+/rank-(\d+)\.")


class LeadServer:
    """Who comes to the lead."""

    def __init__(
        self,
        context: AgentContext,
        lead: Lead | CallLead,
        inputs: Inputs,
        call_server: CallServer | None = None,
    ) -> None:
        self._context = context
        self._lead = lead
        self._call_server = call_server  # where the nodes take calls
        self._inputs = inputs
        self._num_leases = 0
        self._had_lease = False
        self._lease_changed = asyncio.Event()
        self._links: set[Link] = set()
        self._nodes: set[int] = set()
        self._indexes = IndexTable(context.incarnation, context.sight)
        self._readers: dict[Link, FolderSender] = {}  # clients that are sent everything
        self._had_reader = False
        self._is_read = False  # one of them has everything, the last status included
        self._reader_came = asyncio.Event()
        self._reader_left = asyncio.Event()
        self._is_dismissing = False

    async def take(self, link: Link, hello: Header, _frames: AsyncIterator[Frame]) -> None:
        """One peer, until it hangs up."""
        self._links.add(link)
        heart = asyncio.ensure_future(beat(link))
        try:
            if hello["role"] == "node" and "farewell" in hello:
                seat = records.read(Seat, hello["farewell"])
                self._lead.hear_farewell(seat, _read_memory(hello))
            elif hello["role"] == "node" and "asks_index" in hello:
                self._give_index(link, hello)
            elif hello["role"] == "node":
                await self._take_node(link, hello)
            else:
                await self._take_client(link, hello)
        finally:
            heart.cancel()
            self._links.discard(link)

    # -- nodes ---------------------------------------------------------------------------------

    def _give_index(self, link: Link, hello: Header) -> None:
        """An agent that has no index asks for one; it comes back with it, or asks again."""
        self._indexes.hear_of_lead(str(hello.get("last_lead", "")))
        indexes = itertools.takewhile(self._lead.knows, itertools.count(1))
        self._tell_index(link, self._indexes.give(str(hello["asks_index"]), indexes))

    def _tell_index(self, link: Link, index: int | None) -> None:
        link.send({"type": "index", "index": index, "lead": self._context.incarnation})

    def _has_index(self, link: Link, index: int, hello: Header) -> bool:
        """Whether `index` is this agent's, where indexes are given out."""
        if "agent" not in hello:
            return True
        self._indexes.hear_of_lead(str(hello.get("last_lead", "")))
        has_it = self._indexes.claim(index, str(hello["agent"]))
        self._tell_index(link, index if has_it else None)
        return has_it

    async def _take_node(self, link: Link, hello: Header) -> None:
        index = int(hello["node"])
        if index == 0 or not self._lead.knows(index):
            raise ProtocolError(f"there is no node {index} in this job")
        if not self._has_index(link, index, hello):
            return
        # also while it leaves: its ranks may still be running
        if index in self._nodes:
            raise ProtocolError(f"node {index} is here already", hint="it ends first")
        self._nodes.add(index)
        pumps: list[FolderSender] = []
        receiver = Receiver(self._context.folder, is_from_ranks)
        why, is_leaving = "its link broke", False
        link.watch(self._context.silence_s)

        def take(frame: Frame) -> None:
            nonlocal is_leaving
            kind = frame.type
            if kind == PIECE:
                receiver.take(read_piece(frame.header, frame.body))
                self._lead.receive(index, {"type": PIECE})
            elif self._call_server is not None and self._call_server.take_part(link, frame):
                return
            elif kind == "join":
                self._join(link, index, frame.header)
                pumps.extend(self._start_pumps(link, index, frame.header))
            elif kind == "prepared":
                self._lead.prepare(index)
            elif kind == "leaving":
                is_leaving = True
                why_left = str(frame.header.get("why", ""))[:200]
                self._lead.lose(index, why_left, parting=Parting.LEAVING)
            elif is_leaving and kind == "stopped":
                self._lead.part(index)
            elif self._lead.is_here(index):
                self._lead.receive(index, self._read(link, frame), frame.body)
            elif not is_leaving:  # given up on: it may come back with a new link
                link.stop_listening()

        try:
            await link.listen(take)
            if link.is_silent:
                why = f"it has said nothing for {self._context.silence_s:g} s"
            if self._context.is_pod and not self._is_dismissing:
                link.cut()  # in order only at the end: a node takes that for the end of its lead
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = f"it said something malformed: {error!r}"
            raise ProtocolError(f"node {index} said something malformed: {error!r}") from error
        finally:
            for sender in pumps:
                sender.close()
            receiver.drop_parts()
            self._nodes.discard(index)
            parting = Parting.CLOSED if link.is_closed else Parting.CUT
            self._indexes.lose(index, parting)
            self._lead.lose(index, why, parting=parting)

    def _read(self, link: Link, frame: Frame) -> dict[str, Any]:
        if self._call_server is not None:
            return self._call_server.with_file(link, frame)
        return dict(frame.header)

    def _join(self, link: Link, index: int, about: Header) -> None:
        if self._call_server is not None:
            self._call_server.join(link, index, about)
            return
        self._lead.join(
            index,
            link.send,
            pid=about["pid"],
            python=about["python"],
            host=str(about.get("host", "")),
            is_prepared=bool(about.get("is_prepared", True)),
            memory=_read_memory(about),
            incarnation=str(about.get("incarnation", "")),
            lost_lead=records.read(LostLead, lost) if (lost := about.get("lost_lead")) else None,
        )

    def _start_pumps(self, link: Link, index: int, about: Header) -> list[FolderSender]:
        """What this node is sent, where nodes do not share a folder."""
        if not self._context.is_pod or self._call_server is not None:
            return []
        folder = self._context.folder
        link.send({"type": "has", "files": measure_files(folder, is_from_ranks)})
        has = read_sizes(about, "has")
        wants = self._wanted_by_deputy if index == _DEPUTY else is_input
        return [FolderSender(link, Sender(folder, wants, has=has))]

    def _wanted_by_deputy(self, path: str) -> bool:
        found = _RANK_FILE.match(path)
        of_node_0 = found is not None and int(found[1]) < self._context.plan.nodes[0].num_ranks
        return of_node_0 or is_input(path) or path.endswith(f"/{names.WORLD_FILE}")

    # -- clients -------------------------------------------------------------------------------

    async def _take_client(self, link: Link, hello: Header) -> None:
        holds_lease = bool(hello.get("lease"))
        self._change_leases(holds_lease)
        sender: FolderSender | None = None
        receiver = Receiver(self._context.folder, is_input)

        def take(frame: Frame) -> None:
            nonlocal holds_lease
            kind = frame.type
            if kind == PIECE:
                self._take_input(receiver, frame)
            elif kind == "lease":
                self._change_leases(bool(frame.header.get("held")) - holds_lease)
                holds_lease = bool(frame.header.get("held"))
            elif kind == "cancel":
                why = str(frame.header.get("why") or "cancelled by a client")
                signum = signal.SIGINT if frame.header.get("interrupt") else signal.SIGTERM
                is_now = bool(frame.header.get("now"))
                self._lead.end(FailureKind.CANCELLED, why, now=is_now, signum=signum)
                link.send({"type": "ok"})
            elif kind == READ_ALL:
                self._is_read = True
            elif self._call_server is not None:
                self._call_server.take(link, frame)

        try:
            if "has" in hello:
                link.send({"type": "wants", "inputs": not self._inputs.is_ready})
                sender = FolderSender(
                    link, Sender(self._context.folder, is_from_lead, has=read_sizes(hello, "has"))
                )
                self._readers[link] = sender
                self._had_reader = True
                self._reader_came.set()
            if sender is not None:  # one that reads files beats
                link.watch(READER_SILENCE_S)
            await link.listen(take)
        finally:
            if sender is not None:
                sender.close()
            receiver.drop_parts()
            if self._call_server is not None:
                self._call_server.leave(link)
            self._readers.pop(link, None)
            self._reader_left.set()
            self._change_leases(-holds_lease)

    def _take_input(self, receiver: Receiver, frame: Frame) -> None:
        """Several clients may bring the same: the first that is complete counts."""
        piece = read_piece(frame.header, frame.body)
        if is_input(piece.path) and not self._inputs.lacks(piece.path):
            return
        if not receiver.take(piece):
            return
        try:
            if self._inputs.arrived(piece.path):
                self._lead.prepare(0)
        except BundleError as error:
            raise ProtocolError(error.message, hint=error.hint) from error

    # -- leases --------------------------------------------------------------------------------

    def _change_leases(self, by: int) -> None:
        self._num_leases += by
        self._had_lease |= by > 0
        self._lease_changed.set()

    def hold_until_closed(self, client: socket.socket) -> None:
        """A lease from birth: the client keeps this open until it has said hello."""
        self._change_leases(1)

        def closed() -> None:
            asyncio.get_running_loop().remove_reader(client.fileno())
            client.close()
            self._change_leases(-1)

        asyncio.get_running_loop().add_reader(client.fileno(), closed)

    async def watch_lease(self) -> None:
        """An attached job ends when nobody has held a lease on it for a while."""
        plan = self._context.plan
        while not plan.detach:
            self._lease_changed.clear()
            if self._num_leases:
                await self._lease_changed.wait()
                continue
            gone_s = plan.lease_s if self._had_lease else max(plan.lease_s, _FIRST_HELLO_S)
            try:
                await asyncio.wait_for(self._lease_changed.wait(), gone_s)
            except asyncio.TimeoutError:
                message = f"its client has been gone for {gone_s:g} s"
                self._lead.end(FailureKind.CANCELLED, message)
                return

    # -- the end -------------------------------------------------------------------------------

    async def serve_readers(self, *, first_s: float, again_s: float, patience_s: float) -> None:
        """Until a client has read everything; one whose line broke may come back and go on.

        `first_s` is for the first one that ever comes, `again_s` for one that left too soon.
        """
        while not self._is_read:
            self._reader_came.clear()
            if not self._readers:
                timeout_s = again_s if self._had_reader else first_s
                try:
                    await asyncio.wait_for(self._reader_came.wait(), timeout_s)
                except asyncio.TimeoutError:
                    return
            await self.see_off(patience_s=patience_s)
            if self._readers:  # and nothing moves
                return
        await self.see_off(patience_s=patience_s)

    async def see_off(self, *, patience_s: float) -> None:
        """Wait for clients to have read everything: they hang up once they have.

        However long that takes, as long as something moves.
        """
        while self._readers:
            idle_s = time.monotonic() - max(sender.moved_s for sender in self._readers.values())
            if idle_s >= patience_s:
                return
            self._reader_left.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reader_left.wait(), patience_s - idle_s)

    async def dismiss(self, order: dict[str, Any] | None = None) -> None:
        """Hang up on everybody; with an order, after telling it."""
        self._is_dismissing = True
        for link in self._links:
            if order is not None:
                link.send(order)
        await asyncio.gather(*(link.close() for link in self._links))


async def beat(link: Link) -> None:
    """Be heard, whatever else there is to say."""
    while True:
        link.send({"type": "heartbeat"})
        await asyncio.sleep(HEARTBEAT_S)


def _read_memory(about: Header) -> LeadHandover | None:
    memory = about.get("memory")
    return records.read(LeadHandover, memory) if memory else None

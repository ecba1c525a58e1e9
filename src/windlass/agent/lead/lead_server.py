"""Server of the lead, for nodes that join and clients that hold a lease, read files or send requests.

`LeadServer` keeps track of connections, leases and clients that read files. `agent.lead.lead_links`
processes the messages of nodes and clients. `EndedJob` replaces the server once a job has ended. It only
reads the files that the lead wrote. Only the agent of node 0 uses this module.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import socket
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from windlass.agent.agent_context import AgentContext
from windlass.agent.inputs import Inputs
from windlass.agent.lead.lead_links import ClientLink, Lead, NodeLink
from windlass.agent.lead.local_nodes import LocalNodes
from windlass.agent.lead.one_world import IndexTable
from windlass.agent.link.agent_link import Link, beat
from windlass.agent.link.folder_sender import FolderSender
from windlass.agent.silence_limits import Parting
from windlass.errors import ProtocolError
from windlass.wire.file_sync import Sender, is_from_lead
from windlass.wire.frames import Frame
from windlass.wire.identity import NODE
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Message
from windlass.wire.messages.jobs import (
    CLIENT_TO_LEAD,
    AllRead,
    CancelJob,
    EndAgent,
    Heard,
    HoldLease,
    InputsWanted,
)
from windlass.wire.messages.link import GiveIndex, Heartbeat, Hello
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.agent.lead.calls.call_server import CallServer


READER_SILENCE_S = 60.0
# minimum: a client must find the lead before it can hold even a short lease
_FIRST_HELLO_S = 30.0
_IGNORED = (Heartbeat, HoldLease, AllRead)


class LeadServer:
    """Server for all connections to the lead."""

    def __init__(
        self,
        context: AgentContext,
        lead: Lead,
        inputs: Inputs,
        call_server: CallServer | None = None,
    ) -> None:
        self._context = context
        self._lead = lead
        self._call_server = call_server  # only on a compute
        self._inputs = inputs
        self._num_leases = 0
        self._had_lease = False
        self.is_abandoned = False  # the job was ended because no client held its lease
        self._lease_changed = asyncio.Event()
        self._links: set[Link] = set()
        self._nodes: set[int] = set()
        self._indexes = IndexTable(context.incarnation, context.sight)
        self._local_nodes = LocalNodes(context) if self._replaces_nodes else None
        self._readers: dict[Link, FolderSender] = {}  # clients that get all files
        self._had_reader = False
        self._is_read = False  # a client has everything, including the final status
        self._reader_came = asyncio.Event()
        self._reader_left = asyncio.Event()
        self._is_closing = False

    @property
    def _replaces_nodes(self) -> bool:
        """True if this lead replaces lost nodes."""
        context = self._context
        is_job = self._call_server is None
        return is_job and not context.is_pod and context.plan.node_restarts > 0

    async def take(self, link: Link, hello: Hello, _frames: AsyncIterator[Frame]) -> None:
        """Serve one peer until it disconnects."""
        self._links.add(link)
        heart = asyncio.ensure_future(beat(link))
        try:
            if hello.role == NODE and hello.farewell is not None:
                self._lead.hear_farewell(hello.farewell, hello.memory)
            elif hello.role == NODE and hello.says("asks_index"):
                self._give_index(link, hello)
            elif hello.role == NODE:
                await self._take_node(link, hello)
            else:
                await self._take_client(link, hello)
        finally:
            heart.cancel()
            self._links.discard(link)

    def _give_index(self, link: Link, hello: Hello) -> None:
        """Offer an agent an index. It reconnects with the index, or asks again if it got none."""
        self._indexes.hear_of_lead(hello.last_lead)
        indexes = itertools.takewhile(self._lead.nodes.knows, itertools.count(1))
        self._send_index(link, self._indexes.give(hello.asks_index, indexes))

    def _send_index(self, link: Link, index: int | None) -> None:
        link.send(GiveIndex(index=index, lead=self._context.incarnation))

    def _has_index(self, link: Link, index: int, hello: Hello) -> bool:
        """Return whether an agent holds `index`. True if the lead does not assign indexes."""
        if not hello.says("agent"):
            return True
        self._indexes.hear_of_lead(hello.last_lead)
        has_it = self._indexes.claim(index, hello.agent)
        self._send_index(link, index if has_it else None)
        return has_it

    async def _take_node(self, link: Link, hello: Hello) -> None:
        index = hello.node or 0
        if index == 0 or not self._lead.nodes.knows(index):
            raise ProtocolError(f"there is no node {index} in this job")
        if not self._has_index(link, index, hello):
            return
        # a leaving node counts, because its ranks may still be running
        if index in self._nodes:
            raise ProtocolError(
                f"node {index} is here already", hint="wait until its other agent has ended"
            )
        self._nodes.add(index)
        node = NodeLink(
            self._context, self._lead, self._call_server, link, index, self._local_nodes
        )
        why = "its connection broke"
        link.watch(self._context.silence_s)
        try:
            await link.listen(node.take)
            if link.is_silent:
                why = f"it has sent nothing for {self._context.silence_s:g} s"
            if self._context.is_pod and not self._is_closing:
                link.cut()  # to the node, an orderly close means that its lead has ended
        except ProtocolError as error:
            why = error.message
            raise
        except (KeyError, IndexError, TypeError, ValueError) as error:
            why = f"it sent a malformed message: {error!r}"
            raise ProtocolError(f"node {index} sent a malformed message: {error!r}") from error
        finally:
            node.close()
            self._nodes.discard(index)
            parting = Parting.CLOSED if link.is_closed else Parting.CUT
            if self._local_nodes is not None and not link.is_closed:
                self._local_nodes.end(index)
                parting = Parting.CLOSED
            self._indexes.lose(index, parting)
            self._lead.lose(index, why, parting=parting)
            if self._local_nodes is not None and not self._is_closing:
                self._local_nodes.replace(index)

    async def _take_client(self, link: Link, hello: Hello) -> None:
        client = ClientLink(
            link,
            self._lead,
            self._call_server,
            self._context.folder,
            self._inputs,
            change_leases=self._change_leases,
            note_read=self._note_read,
        )
        client.hold_lease(hello.lease)
        try:
            if hello.has is not None:
                link.send(InputsWanted(inputs=not self._inputs.is_ready))
                sender = Sender(self._context.folder, is_from_lead, has=hello.has)
                self._readers[link] = FolderSender(link, sender)
                self._had_reader = True
                self._reader_came.set()
                link.watch(READER_SILENCE_S)  # clients that read files send heartbeats
            await link.listen(client.take)
        finally:
            client.close()
            if (reader := self._readers.pop(link, None)) is not None:
                reader.close()
            self._reader_left.set()

    def _note_read(self) -> None:
        self._is_read = True

    # -- leases --------------------------------------------------------------------------------

    def _change_leases(self, by: int) -> None:
        if not by:  # a client without a lease, such as `ls`, must not restart the wait for an owner
            return
        self._num_leases += by
        self._had_lease |= by > 0
        self._lease_changed.set()

    def hold_until_closed(self, client: socket.socket) -> None:
        """Hold a lease until `client` closes. The client keeps it open until it has connected."""
        self._change_leases(1)

        def closed() -> None:
            asyncio.get_running_loop().remove_reader(client.fileno())
            client.close()
            self._change_leases(-1)

        asyncio.get_running_loop().add_reader(client.fileno(), closed)

    async def watch_lease(self) -> None:
        """End an attached job after a time in which no client holds its lease."""
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
                self.is_abandoned = True
                message = f"its client has been gone for {gone_s:g} s"
                self._lead.end(FailureKind.CANCELLED, message)
                return

    # -- the end -------------------------------------------------------------------------------

    async def serve_readers(self, *, first_s: float, again_s: float, idle_timeout_s: float) -> None:
        """Wait until a client has read everything. A client that lost its connection may reconnect.

        `first_s` limits the wait for the first client, `again_s` for one that disconnected too soon.
        """
        while not self._is_read:
            self._reader_came.clear()
            if not self._readers:
                timeout_s = again_s if self._had_reader else first_s
                try:
                    await asyncio.wait_for(self._reader_came.wait(), timeout_s)
                except asyncio.TimeoutError:
                    return
            await self.wait_for_readers(idle_timeout_s=idle_timeout_s)
            if self._readers:  # they are stalled
                return
        await self.wait_for_readers(idle_timeout_s=idle_timeout_s)

    async def wait_for_readers(self, *, idle_timeout_s: float) -> None:
        """Wait until clients have read everything, which is when they hang up.

        There is no limit as long as one of them reads something in each `idle_timeout_s`.
        """
        while self._readers:
            idle_s = time.monotonic() - max(sender.moved_s for sender in self._readers.values())
            if idle_s >= idle_timeout_s:
                return
            self._reader_left.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._reader_left.wait(), idle_timeout_s - idle_s)

    async def close_links(self, last: Message | None = None) -> None:
        """Send the last message, if any, over every link, and close all links."""
        self._is_closing = True
        for link in self._links:
            if last is not None:
                link.send(last)
        await asyncio.gather(*(link.close() for link in self._links))


class EndedJob:
    """Server for connections after the job has ended."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    async def take(self, link: Link, hello: Hello, _frames: AsyncIterator[Frame]) -> None:
        """Serve one peer until it disconnects."""
        if hello.role == NODE:
            link.send(EndAgent())
            return
        link.send(InputsWanted(inputs=False))
        sender = FolderSender(link, Sender(self._folder, is_from_lead, has=hello.has or {}))
        heart = asyncio.ensure_future(beat(link))
        link.watch(READER_SILENCE_S)
        try:
            await link.listen(lambda frame: self._take(link, frame))
        finally:
            heart.cancel()
            sender.close()

    def _take(self, link: Link, frame: Frame) -> None:
        is_known = frame.type in CLIENT_TO_LEAD.kinds
        message = CLIENT_TO_LEAD.read(frame.header) if is_known else None
        if isinstance(message, CancelJob):  # the job has already ended
            link.send(Heard())
        elif not isinstance(message, _IGNORED):
            raise ProtocolError(
                "the job has ended", hint="its status, logs and results can still be read"
            )

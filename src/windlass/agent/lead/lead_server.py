"""Server of the lead: the connections of nodes and clients, and the interface of leads.

`LeadServer` keeps track of connections, leases and clients that read files. It handles joining, files,
leases and inputs. All other messages go to a `Lead`, which is `agent.lead.jobs.job_lead` or
`agent.lead.calls.call_lead`. On a compute, some go to `agent.lead.calls.call_server`. This module must not
import modules of calls at load time, because that would delay the start of jobs.

`LocalNodes` replaces lost nodes of a job on this machine. In a cluster, Kubernetes does that. `EndedJob`
replaces the server once a job has ended, and only reads the files that the lead wrote.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import re
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol

from windlass import names, processes
from windlass.agent.agent_context import AgentContext
from windlass.agent.inputs import Inputs
from windlass.agent.lead.node_table import IndexTable, NodeTable, SendBody
from windlass.agent.link.agent_link import Link, beat
from windlass.agent.link.folder_sender import FolderSender
from windlass.agent.silence_limits import Disconnect
from windlass.errors import BundleError, ProtocolError
from windlass.wire.file_sync import (
    Receiver,
    Sender,
    is_from_lead,
    is_from_ranks,
    is_input,
    measure_files,
    read_piece,
)
from windlass.wire.frames import Frame
from windlass.wire.identity import NODE
from windlass.wire.job_folder import JobFolder
from windlass.wire.lead_handover import AgentIdentity, LeadHandover
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.agents import StartNode
from windlass.wire.messages.jobs import (
    CLIENT_TO_LEAD,
    NODE_TO_LEAD,
    Acknowledged,
    AllRead,
    CancelJob,
    EndAgent,
    FilesHere,
    HoldLease,
    InputsReady,
    InputsRequest,
    JoinLead,
    NodeLeaving,
)
from windlass.wire.messages.link import FilePiece, GiveIndex, Heartbeat, Hello
from windlass.wire.messages.worlds import WorldCleared
from windlass.wire.start_order import send_order
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.agent.lead.calls.call_server import CallServer
    from windlass.agent.link.payload_parts import Ship

logger = logging.getLogger(__name__)
_DEPUTY = 1  # keeps a copy of the files of node 0's ranks, for a replacement of node 0
_RANK_FILE = re.compile(r"attempt-\d+/rank-(\d+)\.")
_MAX_WHY = 200


class Lead(Protocol):
    """Interface of leads. A lead decides what the ranks of all nodes do."""

    nodes: NodeTable

    async def run(self) -> None:
        """Run until the job ends. The status is final when this returns."""

    async def leave(self) -> None:
        """End all ranks because this node must stop. Another lead may take over."""

    @property
    def has_lost_nodes(self) -> bool:
        """True if nodes are unreachable, so that a later lead must learn of this lead's end."""

    def join(
        self, index: int, send: SendBody, about: JoinLead, *, ship: Ship | None = None
    ) -> None:
        """Add a node that has joined, with the state that it kept of the previous lead."""

    def receive(self, index: int, message: Message, body: bytes = b"") -> None:
        """Process a message from a node."""

    def lose(
        self, index: int, why: str = "", *, disconnect: Disconnect = Disconnect.CLOSED
    ) -> None:
        """Record the loss of a node."""

    def record_exit(self, index: int) -> None:
        """Record a leaving node's report that its ranks are dead. It starts no others."""

    def record_permanent_exit(self, seat: AgentIdentity, memory: LeadHandover | None) -> None:
        """Record that an unreachable node has ended permanently and has no ranks.

        `memory` is the state of the previous lead as the node knows it.
        """

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Request the end, with `signum` for the ranks. A second one with `now` kills them immediately."""


class NodeLink:
    """Connection of one node."""

    def __init__(
        self,
        context: AgentContext,
        lead: Lead,
        call_server: CallServer | None,
        link: Link,
        index: int,
        local_nodes: LocalNodes | None = None,
    ) -> None:
        self._context = context
        self._lead = lead
        self._call_server = call_server
        self._link = link
        self._index = index
        self._local_nodes = local_nodes
        self._receiver = Receiver(context.folder, is_from_ranks)
        self._sender: FolderSender | None = None
        self._is_leaving = False
        self._reads = NODE_TO_LEAD if call_server is None else call_server.node_reads
        self._handlers: Handlers = {
            FilePiece: self._take_piece,
            JoinLead: self._join,
            InputsReady: lambda _message, _body: lead.nodes.prepare(index),
            NodeLeaving: self._leave,
        }

    def take(self, frame: Frame) -> None:
        """Process one message from the node."""
        message = self._reads.read(frame.header)
        handle = self._handlers.get(type(message))
        if handle is not None:
            handle(message, frame.body)
        elif self._call_server is not None and self._call_server.keep_part(
            self._link, message, frame.body
        ):
            return
        elif self._is_leaving and isinstance(message, WorldCleared) and message.is_last:
            self._lead.record_exit(self._index)
        elif self._index in self._lead.nodes:
            if self._call_server is not None:
                message = self._call_server.with_file(self._link, message)
            self._lead.receive(self._index, message, frame.body)
        elif not self._is_leaving:  # the lead has given up on this node, but it may reconnect
            self._link.stop_listening()

    def close(self) -> None:
        """Release the resources of the connection."""
        if self._sender is not None:
            self._sender.close()
        self._receiver.drop_parts()
        if self._call_server is not None:
            self._call_server.leave(self._link)

    def _take_piece(self, message: FilePiece, body: bytes) -> None:
        self._receiver.take(read_piece(message, body))
        self._lead.receive(self._index, message)

    def _leave(self, message: NodeLeaving, _body: bytes) -> None:
        self._is_leaving = True
        self._lead.lose(self._index, message.why[:_MAX_WHY], disconnect=Disconnect.LEAVING)

    def _join(self, about: JoinLead, _body: bytes) -> None:
        if self._call_server is not None:
            self._call_server.join(self._link, self._index, about)
            return
        if self._local_nodes is not None:
            self._local_nodes.joined(self._index, about.pid)
        self._lead.join(self._index, self._link.send, about)
        if self._context.is_pod:  # pods do not share a folder
            folder = self._context.folder
            self._link.send(FilesHere(files=measure_files(folder, is_from_ranks)))
            wants = self._wanted_by_deputy if self._index == _DEPUTY else is_input
            self._sender = FolderSender(self._link, Sender(folder, wants, has=about.has or {}))

    def _wanted_by_deputy(self, path: str) -> bool:
        match = _RANK_FILE.match(path)
        of_node_0 = match is not None and int(match[1]) < self._context.plan.nodes[0].num_ranks
        return of_node_0 or is_input(path) or path.endswith(f"/{names.WORLD_FILE}")


class ClientLink:
    """Connection of one client. Reports to the server through `change_leases` and `note_read`."""

    def __init__(
        self,
        link: Link,
        lead: Lead,
        call_server: CallServer | None,
        folder: JobFolder,
        inputs: Inputs,
        *,
        change_leases: Callable[[int], None],
        note_read: Callable[[], None],
    ) -> None:
        self._link = link
        self._lead = lead
        self._call_server = call_server
        self._inputs = inputs
        self._receiver = Receiver(folder, is_input)
        self._change_leases = change_leases
        self._holds_lease = False
        self._reads = CLIENT_TO_LEAD if call_server is None else call_server.client_reads
        self._handlers: Handlers = {
            FilePiece: self._take_input,
            HoldLease: lambda message, _body: self.hold_lease(message.held),
            CancelJob: self._cancel,
            AllRead: lambda _message, _body: note_read(),
            Heartbeat: lambda _message, _body: None,
        }

    def take(self, frame: Frame) -> None:
        """Process one message from the client."""
        message = self._reads.read(frame.header)
        handle = self._handlers.get(type(message))
        if handle is not None:
            handle(message, frame.body)
        elif self._call_server is not None:
            self._call_server.take(self._link, message, frame.body)

    def hold_lease(self, held: bool) -> None:
        """Record whether the client holds the job's lease."""
        self._change_leases(held - self._holds_lease)
        self._holds_lease = held

    def close(self) -> None:
        """Release the resources of the connection, including its lease."""
        self._receiver.drop_parts()
        if self._call_server is not None:
            self._call_server.leave(self._link)
        self.hold_lease(False)

    def _cancel(self, order: CancelJob, _body: bytes) -> None:
        why = order.why or "cancelled by a client"
        signum = signal.SIGINT if order.interrupt else signal.SIGTERM
        self._lead.end(FailureKind.CANCELLED, why, now=order.now, signum=signum)
        self._link.send(Acknowledged())

    def _take_input(self, message: FilePiece, body: bytes) -> None:
        """Store a piece of an input. If several clients send it, the first complete copy counts."""
        piece = read_piece(message, body)
        if is_input(piece.path) and not self._inputs.lacks(piece.path):
            return
        if not self._receiver.take(piece):
            return
        try:
            if self._inputs.arrived(piece.path):
                self._lead.nodes.prepare(0)
        except BundleError as error:
            raise ProtocolError(error.message, hint=error.hint) from error


class LocalNodes:
    """Agents of one job's followers."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._pids: dict[int, int] = {}

    def joined(self, index: int, pid: int) -> None:
        """Record the process ID of a node's agent."""
        self._pids[index] = pid

    def end(self, index: int) -> None:
        """Kill an unresponsive agent and all its descendants."""
        pid = self._pids.pop(index, 0)
        if pid:
            processes.kill_descendants(pid)
            processes.kill(pid, signal.SIGKILL)

    def replace(self, index: int) -> None:
        """Start another agent for a node. A failure is logged, and the lead keeps waiting for the node."""
        context = self._context
        log = context.folder.agent_log(index)
        order = StartNode(
            node=index,
            plan=str(context.folder.plan),
            run_dir=str(context.run_dir),
            log=str(log),
            hidden={},  # the new agent inherits these variables in its environment
        )
        ours, theirs = socket.socketpair()
        try:
            with ours, theirs, processes.not_reaping():
                _spawn(theirs.fileno(), str(log))
                send_order(ours, order, [])
        except OSError as error:
            logger.warning("node %s cannot be replaced: %s", index, error)
        else:
            logger.info("another agent was started as node %s", index)


def _spawn(control_fd: int, log: str) -> None:
    """Start an agent through a process that exits immediately, so that the system adopts the agent.

    The lead kills all of its own child processes at the end of an attempt.
    """
    argv = [sys.executable, "-I", "-S", sys.argv[0], "replacement", str(control_fd)]
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
        (os.POSIX_SPAWN_DUP2, 1, 2),
        (os.POSIX_SPAWN_DUP2, control_fd, control_fd),
    ]
    pid = os.posix_spawn(argv[0], argv, os.environ, file_actions=actions)
    os.waitpid(pid, 0)


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
        self._indexes = IndexTable(context.incarnation, context.limits)
        self._local_nodes = LocalNodes(context) if self._replaces_nodes else None
        self._readers: dict[Link, FolderSender] = {}  # clients that get all files
        self._had_reader = False
        self._is_read = False  # a client has received everything, including the final status
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
                self._lead.record_permanent_exit(hello.farewell, hello.memory)
            elif hello.role == NODE and hello.has_field("asks_index"):
                self._give_index(link, hello)
            elif hello.role == NODE:
                await self._take_node(link, hello)
            else:
                await self._take_client(link, hello)
        finally:
            heart.cancel()
            self._links.discard(link)

    def _give_index(self, link: Link, hello: Hello) -> None:
        """Offer an index to an agent. It reconnects with the index, or asks again if none was free."""
        self._indexes.record_lead(hello.last_lead)
        indexes = itertools.takewhile(self._lead.nodes.knows, itertools.count(1))
        self._send_index(link, self._indexes.give(hello.asks_index, indexes))

    def _send_index(self, link: Link, index: int | None) -> None:
        link.send(GiveIndex(index=index, lead=self._context.incarnation))

    def _has_index(self, link: Link, index: int, hello: Hello) -> bool:
        """Return whether an agent holds `index`. True if the lead does not assign indexes."""
        if not hello.has_field("agent"):
            return True
        self._indexes.record_lead(hello.last_lead)
        has_it = self._indexes.claim(index, hello.agent)
        self._send_index(link, index if has_it else None)
        return has_it

    async def _take_node(self, link: Link, hello: Hello) -> None:
        index = hello.node or 0
        if index == 0 or not self._lead.nodes.knows(index):
            raise ProtocolError(f"node {index} is not part of this job")
        if not self._has_index(link, index, hello):
            return
        # a leaving node still counts, because its ranks may be running
        if index in self._nodes:
            raise ProtocolError(
                f"node {index} is already connected", hint="wait until its other agent exits"
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
            disconnect = Disconnect.CLOSED if link.is_closed else Disconnect.CUT
            if self._local_nodes is not None and not link.is_closed:
                self._local_nodes.end(index)
                disconnect = Disconnect.CLOSED
            self._indexes.lose(index, disconnect)
            self._lead.lose(index, why, disconnect=disconnect)
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
                link.send(InputsRequest(inputs=not self._inputs.is_ready))
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
        """End an attached job if no client holds its lease for some time."""
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
        """Wait until clients have read everything and hung up.

        There is no limit as long as at least one of them reads data within each `idle_timeout_s`.
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
        link.send(InputsRequest(inputs=False))
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
            link.send(Acknowledged())
        elif not isinstance(message, _IGNORED):
            raise ProtocolError(
                "the job has ended", hint="its status, logs and results can still be read"
            )

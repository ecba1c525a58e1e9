"""Connections of nodes and clients to a lead, and the interface of leads.

This module handles joining, files, leases and inputs. All other messages go to a `Lead`, which is
`agent.lead.jobs.job_lead` or `agent.lead.calls.call_lead`. On a compute, some go to
`agent.lead.calls.call_server`. Must not import modules of calls at load time, because that would delay
the start of jobs.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.inputs import Inputs
from windlass.agent.lead.node_table import NodeTable, SendBody
from windlass.agent.link.agent_link import Link
from windlass.agent.link.folder_sender import FolderSender
from windlass.agent.silence_limits import Parting
from windlass.errors import BundleError, ProtocolError
from windlass.wire.file_sync import (
    Receiver,
    Sender,
    is_from_ranks,
    is_input,
    measure_files,
    read_piece,
)
from windlass.wire.frames import Frame
from windlass.wire.job_folder import JobFolder
from windlass.wire.lead_handover import LeadHandover, Seat
from windlass.wire.message import Handlers, Message
from windlass.wire.messages.jobs import (
    CLIENT_TO_LEAD,
    NODE_TO_LEAD,
    AllRead,
    CancelJob,
    FilesHere,
    Heard,
    HoldLease,
    InputsReady,
    JoinLead,
    NodeLeaving,
)
from windlass.wire.messages.link import FilePiece, Heartbeat
from windlass.wire.messages.worlds import WorldCleared
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.agent.lead.calls.call_server import CallServer
    from windlass.agent.lead.local_nodes import LocalNodes
    from windlass.agent.link.payload_parts import Ship


_DEPUTY = 1  # keeps a copy of the files of node 0's ranks, for a replacement of node 0
_RANK_FILE = re.compile(r"attempt-\d+/rank-(\d+)\.")
_MAX_WHY = 200


class Lead(Protocol):
    """Interface of leads, which decide for all nodes what their ranks do."""

    nodes: NodeTable

    async def run(self) -> None:
        """Run until the end. Afterwards the status is final."""

    async def leave(self) -> None:
        """End all ranks because this node must stop. Another lead may follow."""

    @property
    def has_lost_nodes(self) -> bool:
        """True if a later lead needs the farewell of this one."""

    def join(
        self, index: int, send: SendBody, about: JoinLead, *, ship: Ship | None = None
    ) -> None:
        """Add a node that has joined, with its knowledge of the previous lead."""

    def receive(self, index: int, message: Message, body: bytes = b"") -> None:
        """Process a message from a node."""

    def lose(self, index: int, why: str = "", *, parting: Parting = Parting.CLOSED) -> None:
        """Record the loss of a node."""

    def part(self, index: int) -> None:
        """Record a leaving node's report that its ranks are dead. It will never have others."""

    def hear_farewell(self, seat: Seat, memory: LeadHandover | None) -> None:
        """Record that an unreachable node has ended permanently and has no ranks.

        `memory` is the state of the previous lead as the node knows it.
        """

    def end(
        self, kind: FailureKind, message: str, *, now: bool = False, signum: int = signal.SIGTERM
    ) -> None:
        """Request the end, with `signum` for the ranks. Another request with `now` ends it immediately."""


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
            self._lead.part(self._index)
        elif self._index in self._lead.nodes:
            if self._call_server is not None:
                message = self._call_server.with_file(self._link, message)
            self._lead.receive(self._index, message, frame.body)
        elif not self._is_leaving:  # the lead gave it up, but it may reconnect
            self._link.stop_listening()

    def close(self) -> None:
        """Release what the connection holds."""
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
        self._lead.lose(self._index, message.why[:_MAX_WHY], parting=Parting.LEAVING)

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
        """Release what the connection holds, including its lease."""
        self._receiver.drop_parts()
        if self._call_server is not None:
            self._call_server.leave(self._link)
        self.hold_lease(False)

    def _cancel(self, order: CancelJob, _body: bytes) -> None:
        why = order.why or "cancelled by a client"
        signum = signal.SIGINT if order.interrupt else signal.SIGTERM
        self._lead.end(FailureKind.CANCELLED, why, now=order.now, signum=signum)
        self._link.send(Heard())

    def _take_input(self, message: FilePiece, body: bytes) -> None:
        """Store a piece of an input. If several clients send one, the first complete copy counts."""
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

"""One node's link to the lead: what comes over it, and which files the node is sent.

Files and joining are dealt with here; all else is the lead's.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from windlass import names
from windlass.agent.agent_context import AgentContext
from windlass.agent.lead.lead import Lead
from windlass.agent.link.agent_link import Link
from windlass.agent.node.folder_sender import FolderSender
from windlass.agent.silence_limits import Parting
from windlass.wire.file_sync import (
    Receiver,
    Sender,
    is_from_ranks,
    is_input,
    measure_files,
    read_piece,
)
from windlass.wire.frames import Frame
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import NODE_TO_LEAD, FilesHere, InputsReady, JoinLead, NodeLeaving
from windlass.wire.messages.link import FilePiece
from windlass.wire.messages.worlds import WorldCleared

if TYPE_CHECKING:
    from windlass.agent.lead.call_server import CallServer
    from windlass.agent.lead.local_nodes import LocalNodes

_DEPUTY = 1  # keeps a copy of what node 0's ranks left, for the node 0 that may come after it
_RANK_FILE = re.compile(r"attempt-\d+/rank-(\d+)\.")
_MAX_WHY = 200


class NodeLink:
    """What one node says, until it hangs up."""

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
        """One message of the node."""
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
        elif not self._is_leaving:  # given up on: it may come back with a new link
            self._link.stop_listening()

    def close(self) -> None:
        """It is gone."""
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
        if self._context.is_pod:  # where nodes do not share a folder
            folder = self._context.folder
            self._link.send(FilesHere(files=measure_files(folder, is_from_ranks)))
            wants = self._wanted_by_deputy if self._index == _DEPUTY else is_input
            self._sender = FolderSender(self._link, Sender(folder, wants, has=about.has or {}))

    def _wanted_by_deputy(self, path: str) -> bool:
        match = _RANK_FILE.match(path)
        of_node_0 = match is not None and int(match[1]) < self._context.plan.nodes[0].num_ranks
        return of_node_0 or is_input(path) or path.endswith(f"/{names.WORLD_FILE}")

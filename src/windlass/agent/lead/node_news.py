"""What nodes tell of themselves, be they of a job or of a compute: imports that are done, and troubles.

Goes into the table of nodes and the status; decides nothing.
"""

from __future__ import annotations

from windlass import names
from windlass.agent.lead.node_table import NodeTable
from windlass.agent.lead.status_writer import StatusWriter
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import ImportsReady, NodeTrouble
from windlass.wire.messages.link import Heartbeat
from windlass.wire.states import MomentName, NodeState


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

"""One client's link to the lead of a job: the lease it holds, what it orders, the inputs it brings.

What a compute is asked beyond that is `agent.lead.call_server`'s.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

from windlass.agent.lead.lead import Lead
from windlass.agent.link.agent_link import Link
from windlass.agent.node.inputs import Inputs
from windlass.errors import BundleError, ProtocolError
from windlass.wire.file_sync import Receiver, is_input, read_piece
from windlass.wire.frames import Frame
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Handlers
from windlass.wire.messages.jobs import CLIENT_TO_LEAD, AllRead, CancelJob, Heard, HoldLease
from windlass.wire.messages.link import FilePiece, Heartbeat
from windlass.wire.status import FailureKind

if TYPE_CHECKING:
    from windlass.agent.lead.call_server import CallServer


class ClientLink:
    """What one client says, until it hangs up; `change_leases` and `note_read` tell whoever counts."""

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
        """One message of the client."""
        message = self._reads.read(frame.header)
        handle = self._handlers.get(type(message))
        if handle is not None:
            handle(message, frame.body)
        elif self._call_server is not None:
            self._call_server.take(self._link, message, frame.body)

    def hold_lease(self, held: bool) -> None:
        """It holds the job's lease from now on, or no longer."""
        self._change_leases(held - self._holds_lease)
        self._holds_lease = held

    def close(self) -> None:
        """It is gone."""
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
        """Several clients may bring the same: the first that is complete counts."""
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

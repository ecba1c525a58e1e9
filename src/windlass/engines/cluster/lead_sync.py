"""Client's copy of a job's folder, kept up to date over one connection to the job's lead.

`LeadSync` runs a thread that connects, copies files, sends orders, and reconnects after each
failure. `lead_connection` opens the connections.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import select
import socket
import threading
import time
from collections.abc import Iterator

from windlass import names
from windlass.engines.cluster.lead_connection import Dial, LeadConnection
from windlass.engines.cluster.lead_pods import KeysExpired
from windlass.errors import EngineError, ProtocolError
from windlass.kube.client.api_errors import Forbidden, Unreachable
from windlass.wire.blocking_link import BlockingLink
from windlass.wire.file_sync import (
    Piece,
    Receiver,
    Sender,
    is_from_lead,
    is_input,
    measure_files,
    read_piece,
)
from windlass.wire.frames import make_hello
from windlass.wire.job_folder import JobFolder
from windlass.wire.message import Message
from windlass.wire.messages.jobs import LEAD_TO_CLIENT, AllRead, CancelJob, HoldLease, InputsRequest
from windlass.wire.messages.link import FilePiece, Heartbeat, Welcome
from windlass.wire.status import JobStatus, read_status

logger = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 30.0
_SILENCE_S = 15.0
_HEARTBEAT_S = 5.0
_FINISH_S = 2.0
_NO_LEAD_PAUSE_S = 0.05
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.25, 1.0  # back-off, because each attempt loads the cluster
_NO_ROOM_PAUSE_S = 5.0
_MAX_LOGGED = 20


class CannotKeep(EngineError):
    """A file from the lead cannot be written on this machine."""


@contextlib.contextmanager
def keeping(folder: JobFolder) -> Iterator[None]:
    """Raise CannotKeep if a write to a job's folder fails."""
    try:
        yield
    except OSError as error:
        raise CannotKeep(
            f"cannot write to {folder.path}: {error.strerror or error}",
            hint=f"free space or make it writable, or set {names.HOME} to another folder",
        ) from error


class LeadSync:
    """One client's copy of a job's folder, updated over one connection at a time."""

    def __init__(self, job_id: str, folder: JobFolder, dial: Dial) -> None:
        self._job_id = job_id
        self._folder = folder
        self._dial = dial
        self._receiver = Receiver(folder, is_from_lead)
        self._orders: collections.deque[Message] = collections.deque()
        self._holds_lease = False
        self._has_last = False  # a final status has arrived
        self._malformed: set[str] = set()
        self._wake, self._waker = socket.socketpair()
        self._stop = threading.Event()
        self.is_up = False
        self.is_synced = threading.Event()  # a status has arrived over this connection
        self.forbidden: Forbidden | None = None  # this user may not forward ports
        self.unreachable: Unreachable | None = None  # the API server does not answer
        self.cannot_keep: CannotKeep | None = None  # this machine cannot write the files
        self.expired: KeysExpired | None = None  # no later attempt can succeed
        self._thread = threading.Thread(target=self._run, name="windlass-sync", daemon=True)
        self._thread.start()

    # -- orders, which are safe in a signal handler --------------------------------------------

    def hold_lease(self, held: bool) -> None:
        self._holds_lease = held
        self._order(HoldLease(held=held))

    def cancel(self, *, now: bool, why: str, interrupt: bool = False) -> None:
        self._order(CancelJob(now=now, why=why, interrupt=interrupt))

    def _order(self, order: Message) -> None:
        self._orders.append(order)
        try:
            self._waker.send(b"x", socket.MSG_DONTWAIT)
        except OSError:
            return

    def close(self) -> None:
        """Send all orders, disconnect, and wait for the thread."""
        self.let_go()
        self._thread.join(timeout=5.0)

    def finish(self) -> None:
        """Wait until the lead of an ended job has been notified that this client has read everything."""
        if self._has_last:
            self._thread.join(timeout=2 * _FINISH_S)

    def let_go(self) -> None:
        """Send all orders and disconnect in the background."""
        self._stop.set()
        self._order(Heartbeat())

    # -- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._stay_connected()
        finally:
            self._wake.close()
            self._waker.close()

    def _stay_connected(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._stop.is_set():
            try:
                connection = self._dial()
                self.unreachable = None
                if connection is None:
                    self._stop.wait(
                        _NO_LEAD_PAUSE_S
                    )  # short: without a candidate, no request was sent
                    continue
                with contextlib.closing(connection):
                    pause_s = _FIRST_PAUSE_S
                    if self._serve(connection):
                        return
            except ProtocolError as error:
                self._note_malformed(error.message)
            except Forbidden as error:
                self.forbidden = error
            except Unreachable as error:
                self.unreachable = error
            except KeysExpired as error:
                self.expired = error
            except CannotKeep as error:
                self._note_cannot_keep(error)
                pause_s = _NO_ROOM_PAUSE_S
            except (OSError, EngineError) as error:
                logger.debug("connection to %s: %s", self._job_id, error)
            finally:
                self.is_up = False
                self._receiver.drop_parts()
            self._stop.wait(pause_s)
            pause_s = min(_LAST_PAUSE_S, pause_s * 1.5)

    def _note_malformed(self, message: str) -> None:
        if message not in self._malformed and len(self._malformed) < _MAX_LOGGED:
            self._malformed.add(message)  # logged once, because it may repeat with every message
            logger.warning("connection to %s: %s", self._job_id, message)

    def _check_status(self, piece: Piece) -> JobStatus | None:
        """Return the status, or None if it is malformed. Log each problem once, and keep following."""
        try:
            status = read_status(piece.body)
        except ProtocolError as error:
            self._note_malformed(f"its status is ignored: {error.message}")
            return None
        if status.job_id != self._job_id:
            self._note_malformed(f"its status is ignored: it belongs to {status.job_id!r:.80}")
            return None
        return status

    def _note_cannot_keep(self, error: CannotKeep) -> None:
        if self.cannot_keep is None:  # logged once, because the copy is retried continually
            logger.warning("%s: %s", self._job_id, error.message)
        self.cannot_keep = error

    def _serve(self, connection: LeadConnection) -> bool:
        """Copy until all files have arrived or `let_go` is called.

        Return True if no further connection is needed. Raises OSError if the connection breaks.
        """
        link = BlockingLink(connection, LEAD_TO_CLIENT, io_timeout_s=_SEND_TIMEOUT_S)
        has = measure_files(self._folder, is_from_lead)
        hello = make_hello(role="client", job_id=self._job_id)
        self._send(link, hello.replaced(lease=self._holds_lease, has=has))
        sent_s = time.monotonic()
        while not self._stop.is_set() or self._orders:
            now_s = time.monotonic()
            if now_s - link.last_received_s > _SILENCE_S:
                raise OSError("the lead has stopped sending heartbeats")
            if now_s - sent_s > _HEARTBEAT_S:
                sent_s = now_s
                self._send(link, Heartbeat())
            received = link.receive(0)
            if received is None:
                self._wait(link)
            elif self._take(link, *received):
                with contextlib.suppress(OSError):  # all files have already arrived
                    connection.finish(_FINISH_S)
                return True
            while self._orders and self.is_up:
                self._send(link, self._orders[0])  # stays queued until it is sent completely
                self._orders.popleft()
        connection.finish(_FINISH_S)
        return True

    def _wait(self, link: BlockingLink) -> None:
        """Wait up to a second for data or an order. Call only after `receive(0)` returned None."""
        poll = select.poll()
        for number in (link.fileno(), self._wake.fileno()):
            poll.register(number, select.POLLIN)
        if self._wake.fileno() in dict(poll.poll(1000)):
            self._wake.recv(4096)

    @staticmethod
    def _send(link: BlockingLink, message: Message, body: bytes = b"") -> None:
        link.send(message, (body,))

    def _take(self, link: BlockingLink, message: Message, body: bytes) -> bool:
        """Handle one message. Return True if it contained a final status."""
        if isinstance(message, Welcome):
            self.is_up, self.forbidden, self.unreachable = True, None, None
        elif isinstance(message, InputsRequest) and message.inputs:
            for piece in Sender(self._folder, is_input, has={}).pieces():
                self._send(link, piece.message, piece.body)
        elif isinstance(message, FilePiece):
            return self._take_piece(link, read_piece(message, body))
        return False

    def _take_piece(self, link: BlockingLink, piece: Piece) -> bool:
        is_status = piece.path == names.STATUS_FILE
        status = self._check_status(piece) if is_status else None
        if is_status and status is None:
            return False
        is_last = status is not None and status.phase.is_final
        if is_last:  # notify the lead first, because this process may exit once the file is written
            self._has_last = True
            self._send(link, AllRead())
        with keeping(self._folder):
            self._receiver.take(piece, is_last=is_last)
        if is_status:  # the status is sent last, so all earlier files have been written
            self.cannot_keep = None
            self.is_synced.set()
        return is_last

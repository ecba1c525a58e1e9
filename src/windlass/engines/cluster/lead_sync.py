"""Connections to a job's lead in a pod: port-forward and mutual TLS, and the copy of the job's folder.

`LeadSync` keeps one connection and copies the job's folder over it; `LeadDial` opens one for a
client that calls. Which of several pods is the lead is found by `lead_pods`.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from windlass import names
from windlass.engines.cluster.job_watch import JobWatch
from windlass.engines.cluster.lead_pods import KeysExpired, LeadPods, runs
from windlass.engines.dialects.dialect import Dialect
from windlass.errors import EngineError, ProtocolError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import Forbidden, Unreachable
from windlass.kube.client.forward import TlsOver
from windlass.kube.objects.fields import Object, uid_of
from windlass.kube.objects.kinds import PODS
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
from windlass.wire.messages.jobs import LEAD_TO_CLIENT, AllRead, CancelJob, HoldLease, InputsWanted
from windlass.wire.messages.link import FilePiece, Heartbeat, Welcome
from windlass.wire.status import JobStatus, read_status
from windlass.wire.tls import client_context_from, server_name

logger = logging.getLogger(__name__)

_SEND_TIMEOUT_S = 30.0
_HANDSHAKE_S = 10.0
_SILENCE_S = 15.0
_BEAT_S = 5.0
_HANG_UP_S = 2.0
_LOOK_S = 0.05
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.25, 1.0  # each try costs the cluster something
_NO_ROOM_PAUSE_S = 5.0
_READ_BYTES = 1 << 20
_MAX_SAID = 20

Secure = Callable[[socket.socket], ssl.SSLSocket]  # speaks the job's TLS over a socket
Dial = Callable[[Secure], ssl.SSLSocket | None]  # a line to the lead; None while there is no lead


class CannotKeep(EngineError):
    """What comes from the lead cannot be written down here."""


@contextlib.contextmanager
def keeping(folder: JobFolder) -> Iterator[None]:
    """Writing to a job's folder here: what the disk says no to is told as what it is."""
    try:
        yield
    except OSError as error:
        raise CannotKeep(
            f"cannot write to {folder.path}: {error.strerror or error}",
            hint=f"make room or make it writable; {names.HOME} names another folder",
        ) from error


class LeadSync:
    """One client's connection to one lead, or to one after another."""

    def __init__(
        self, job_id: str, folder: JobFolder, certificates: Mapping[str, bytes], dial: Dial
    ) -> None:
        self._job_id = job_id
        self._folder = folder
        self._context = client_context_from(certificates)
        self._dial = dial
        self._receiver = Receiver(folder, is_from_lead)
        self._orders: collections.deque[Message] = collections.deque()
        self._holds_lease = False
        self._has_last = False  # a final status has come
        self._malformed: set[str] = set()
        self._wake, self._waker = socket.socketpair()
        self._stop = threading.Event()
        self.is_up = False
        self.is_synced = threading.Event()  # a status has come over this line
        self.forbidden: Forbidden | None = None  # we may not reach it at all
        self.unreachable: Unreachable | None = None  # nobody answers there
        self.cannot_keep: CannotKeep | None = None  # nothing more fits here
        self.expired: KeysExpired | None = None  # nobody will ever reach it again
        self._thread = threading.Thread(target=self._run, name="windlass-line", daemon=True)
        self._thread.start()

    # -- what others ask for; safe in a signal handler -----------------------------------------

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
        """Hang up, after what was ordered has been said."""
        self.let_go()
        self._thread.join(timeout=5.0)

    def finish(self) -> None:
        """Of a job that has ended: wait until its lead knows that all was read."""
        if self._has_last:
            self._thread.join(timeout=2 * _HANG_UP_S)

    def let_go(self) -> None:
        """Hang up soon."""
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
                reached = self._dial(self._secure)
                self.unreachable = None
                if reached is None:
                    self._stop.wait(_LOOK_S)  # which costs nothing
                    continue
                with reached as connection:
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
                logger.debug("line to %s: %s", self._job_id, error)
            finally:
                self.is_up = False
                self._receiver.drop_parts()
            self._stop.wait(pause_s)
            pause_s = min(_LAST_PAUSE_S, pause_s * 1.5)

    def _secure(self, reached: socket.socket) -> ssl.SSLSocket:
        reached.settimeout(_HANDSHAKE_S)
        try:
            return self._context.wrap_socket(reached, server_hostname=server_name(self._job_id))
        except BaseException:
            reached.close()
            raise

    def _note_malformed(self, what: str) -> None:
        if what not in self._malformed and len(self._malformed) < _MAX_SAID:
            self._malformed.add(what)  # said once: it may come again and again
            logger.warning("line to %s: %s", self._job_id, what)

    def _check_status(self, piece: Piece) -> JobStatus | None:
        """The status in a piece; None, said once, where it is none: that is no reason to follow no more."""
        try:
            status = read_status(piece.body)
        except ProtocolError as error:
            self._note_malformed(f"its status is ignored: {error.message}")
            return None
        if status.job_id != self._job_id:
            self._note_malformed(f"its status is ignored: it is of {status.job_id!r:.80}")
            return None
        return status

    def _note_cannot_keep(self, error: CannotKeep) -> None:
        if self.cannot_keep is None:  # said once: it is tried again all the time
            logger.warning("%s: %s", self._job_id, error.message)
        self.cannot_keep = error

    def _serve(self, connection: ssl.SSLSocket) -> bool:
        """Copy until all is here, or nobody wants it any more; OSError when the line breaks."""
        link = BlockingLink(connection, LEAD_TO_CLIENT, patience_s=_SEND_TIMEOUT_S)
        has = measure_files(self._folder, is_from_lead)
        hello = make_hello(role="client", job_id=self._job_id)
        self._say(link, hello.replaced(lease=self._holds_lease, has=has))
        said_s = time.monotonic()
        while not self._stop.is_set() or self._orders:
            now_s = time.monotonic()
            if now_s - link.heard_s > _SILENCE_S:
                raise OSError("the lead has gone silent")
            if now_s - said_s > _BEAT_S:
                said_s = now_s
                self._say(link, Heartbeat())
            received = link.receive(0)
            if received is None:
                self._wait(link)
            elif self._take(link, *received):
                with contextlib.suppress(OSError):  # all is here, whatever breaks now
                    self._hang_up(connection)
                return True
            while self._orders and self.is_up:
                self._say(link, self._orders[0])  # one that could not be said is said again
                self._orders.popleft()
        self._hang_up(connection)
        return True

    @staticmethod
    def _hang_up(connection: ssl.SSLSocket) -> None:
        """Say goodbye in TLS, which a port-forward passes on, and read until the lead is done too.

        A lead that speaks into a closed socket would lose what it has not read yet: our last words.
        """
        end_s = time.monotonic() + _HANG_UP_S
        connection.settimeout(_HANG_UP_S)
        with contextlib.suppress(OSError):  # it may be in the middle of a sentence
            connection.unwrap()
        connection.shutdown(socket.SHUT_WR)
        while time.monotonic() < end_s and connection.recv(_READ_BYTES):
            pass

    def _wait(self, link: BlockingLink) -> None:
        """Until something comes or is ordered, for a few moments at most."""
        wake = self._wake.fileno()
        ready, _, _ = select.select([link.fileno(), wake], [], [], 1.0)
        if wake in ready:
            self._wake.recv(4096)

    @staticmethod
    def _say(link: BlockingLink, message: Message, body: bytes = b"") -> None:
        link.send(message, (body,))

    def _take(self, link: BlockingLink, message: Message, body: bytes) -> bool:
        """One message; whether it was the last that matters: a final status."""
        if isinstance(message, Welcome):
            self.is_up, self.forbidden, self.unreachable = True, None, None
        elif isinstance(message, InputsWanted) and message.inputs:
            for piece in Sender(self._folder, is_input, has={}).pieces():
                self._say(link, piece.message, piece.body)
        elif isinstance(message, FilePiece):
            return self._take_piece(link, read_piece(message, body))
        return False

    def _take_piece(self, link: BlockingLink, piece: Piece) -> bool:
        is_status = piece.path == names.STATUS_FILE
        status = self._check_status(piece) if is_status else None
        if is_status and status is None:
            return False
        is_last = status is not None and status.phase.is_final
        if is_last:  # said before anybody here sees the end, and perhaps ends this process
            self._has_last = True
            self._say(link, AllRead())
        with keeping(self._folder):
            self._receiver.take(piece, is_last=is_last)
        if is_status:  # which comes last, so all before it has been kept
            self.cannot_keep = None
            self.is_synced.set()
        return is_last


class LeadDial:
    """The way to one compute's lead, whichever pod that is."""

    def __init__(self, api: Api, dialect: Dialect, job_id: str, keys: Mapping[str, bytes]) -> None:
        self._api = api
        self._dialect = dialect
        self._job_id = job_id
        self._context = client_context_from(keys)
        self._pods = LeadPods(job_id, self._find)

    def dial(self) -> TlsOver:
        """A connection to node 0's agent; ConnectionRefusedError while node 0 does not run."""
        connection = self._pods.reach(self._connect)
        if connection is None:
            raise ConnectionRefusedError(f"node 0 of {self._job_id} does not run")
        return connection

    @cached_property
    def _object_uid(self) -> str:
        return uid_of(self._api.get(self._dialect.kind, self._dialect.make_name(self._job_id)))

    def _find(self) -> list[Object]:
        dialect = self._dialect
        wanted = {names.LABEL_JOB: self._job_id, **dialect.lead_labels}
        labels = ",".join(f"{label}={value}" for label, value in wanted.items())
        leads = [pod for pod in self._api.list(PODS, labels=labels) if dialect.index_of(pod) == 0]
        return [pod for pod in leads if runs(pod) and dialect.owns(pod, self._object_uid)]

    def _connect(self, pod: str) -> TlsOver:
        reached = self._api.forward_in_turns(pod, names.AGENT_PORT)
        reached.settimeout(_HANDSHAKE_S)
        try:
            return TlsOver(reached, self._context, server_hostname=server_name(self._job_id))
        except BaseException:
            reached.close()
            raise


def make_dial(api: Api, job_id: str, sight: JobWatch) -> Dial:
    """How a line reaches the lead that is in sight. It keeps nothing else alive: a thread holds it."""
    pods = LeadPods(job_id, sight.find_leads, sight.distrust)

    def dial(secure: Secure) -> ssl.SSLSocket | None:
        return pods.reach(lambda pod: secure(api.forward(pod, names.AGENT_PORT)))

    return dial

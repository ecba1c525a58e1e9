"""Connection to a job's lead in a pod: the job's TLS over a port-forward, without a thread.

This is the only path from a client to a lead on a cluster. `LeadDial` opens connections. `lead_sync`
uses one to copy a job's folder, and the engine opens one for each call on a compute. `lead_pods`
finds out which of several pods is the lead.
"""

from __future__ import annotations

import contextlib
import ssl
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

from windlass import names
from windlass.engines.cluster.lead_pods import LeadPods, runs
from windlass.engines.dialects.dialect import Dialect
from windlass.kube.client.api import Api
from windlass.kube.objects.fields import Object, uid_of
from windlass.kube.objects.kinds import PODS
from windlass.wire.tls import client_context_from, server_name

_HANDSHAKE_S = 10.0
_CLOSE_S = 1.0
_CHUNK_BYTES = 64 << 10

Dial = Callable[[], "LeadConnection | None"]  # returns None while there is no lead


class ByteStream(Protocol):
    """Byte stream that TLS can run over, such as `PodStream`."""

    def recv(self, size: int, /) -> bytes: ...
    def sendall(self, data: bytes, /) -> None: ...
    def settimeout(self, timeout_s: float | None, /) -> None: ...
    def fileno(self) -> int: ...
    def pending(self) -> bool: ...
    def close(self) -> None: ...


class LeadConnection:
    """Connection with the job's TLS over a byte stream, for use as the `Stream` of a `BlockingLink`.

    After a `recv` with timeout 0 has raised TimeoutError, no layer has buffered data, so it is safe
    to poll `fileno`. At any other time, check `pending` first: a poll could miss data.
    """

    def __init__(self, stream: ByteStream, context: ssl.SSLContext, job_id: str) -> None:
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_name(job_id))
        try:
            self._shake_hands()
        except BaseException:
            with contextlib.suppress(OSError):
                self._flush()  # sends the TLS alert with the reason
            stream.close()
            raise

    def _shake_hands(self) -> None:
        end_s = time.monotonic() + _HANDSHAKE_S
        while True:
            self._stream.settimeout(max(0.0, end_s - time.monotonic()))
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._receive()
                continue
            self._flush()
            return

    def settimeout(self, timeout_s: float | None) -> None:
        self._stream.settimeout(timeout_s)

    def fileno(self) -> int:
        return self._stream.fileno()

    def pending(self) -> bool:
        """Return whether a layer above the socket has buffered data, which a poll would not report."""
        return self._tls.pending() > 0 or self._in.pending > 0 or self._stream.pending()

    def sendall(self, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)
        while view:
            view = view[self._tls.write(view[:_CHUNK_BYTES]) :]
            self._flush()

    def recv(self, size: int) -> bytes:
        return self._read(size) or b""

    def recv_into(self, buffer: memoryview) -> int:
        return self._read(len(buffer), buffer) or 0

    def _read(self, size: int, *buffer: memoryview) -> Any:
        while True:
            try:
                return self._tls.read(size, *buffer)
            except ssl.SSLWantReadError:
                self._receive()
            except ssl.SSLZeroReturnError:
                return None

    def _receive(self) -> None:
        """Read the next bytes from the stream. Raises OSError at its end."""
        self._flush()
        data = self._stream.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("the pod closed the connection")
        self._in.write(data)

    def _flush(self) -> None:
        if data := self._out.read():
            self._stream.sendall(data)

    def finish(self, timeout_s: float) -> None:
        """Send the end of the stream, then discard received data until the lead has also closed.

        A lead that writes to a closed connection loses data that it has not read yet. A port-forward
        does not transmit a half-closed socket, but it transmits TLS's close_notify.
        """
        end_s = time.monotonic() + timeout_s
        self._stream.settimeout(timeout_s)
        self._send_end()
        while (left_s := end_s - time.monotonic()) > 0:
            self._stream.settimeout(left_s)
            if not self._stream.recv(_CHUNK_BYTES):
                return

    def _send_end(self) -> None:
        with contextlib.suppress(
            ssl.SSLError
        ):  # raised until the peer also closes, which is expected
            self._tls.unwrap()
        self._flush()

    def close(self) -> None:
        """Send the end of the stream, and close without waiting for the peer."""
        with contextlib.suppress(OSError):
            self._stream.settimeout(_CLOSE_S)
            self._send_end()
        self._stream.close()


class LeadDial:
    """Opener of connections to one job's lead, in whichever pod it runs.

    `find` lists the pods that may be the lead. `distrust` is called with the UID of each impostor.
    """

    def __init__(
        self,
        api: Api,
        job_id: str,
        certificates: Mapping[str, bytes],
        find: Callable[[], Sequence[Object]],
        distrust: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self._api = api
        self._job_id = job_id
        self._context = client_context_from(certificates)
        self._pods = LeadPods(job_id, find, distrust)

    def dial(self) -> LeadConnection | None:
        """Return a connection to node 0's agent, or None while node 0 is not running."""
        return self._pods.reach(self._connect)

    def _connect(self, pod: str) -> LeadConnection:
        stream = self._api.open_stream(pod, names.AGENT_PORT)
        return LeadConnection(stream, self._context, self._job_id)


class LeadSearch:
    """Lookup of the pods that may be a job's lead, for a client that does not watch the job."""

    def __init__(self, api: Api, dialect: Dialect, job_id: str) -> None:
        self._api = api
        self._dialect = dialect
        self._job_id = job_id

    def find_leads(self) -> list[Object]:
        """Return the running pods of node 0 that the job's object owns."""
        dialect = self._dialect
        wanted = {names.LABEL_JOB: self._job_id, **dialect.lead_labels}
        labels = ",".join(f"{label}={value}" for label, value in wanted.items())
        leads = [pod for pod in self._api.list(PODS, labels=labels) if dialect.index_of(pod) == 0]
        return [pod for pod in leads if runs(pod) and dialect.owns(pod, self._object_uid)]

    @cached_property
    def _object_uid(self) -> str:
        return uid_of(self._api.get(self._dialect.kind, self._dialect.make_name(self._job_id)))

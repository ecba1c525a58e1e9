"""Port-forward to a pod over one websocket (`v4.channel.k8s.io`).

`open_stream` returns a `PodStream`: the pod's port as a blocking stream, without a thread. All
connections to agents use it. `open_forward` returns a local socket instead, which a thread
serves. It is for callers that need a real socket, such as the user's own port-forwards.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from urllib.parse import urlencode

from websockets.client import ClientProtocol
from websockets.exceptions import InvalidHandshake, InvalidState, InvalidStatus
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from windlass.kube.client.api_errors import Unauthorized, make_unreachable, read_refusal
from windlass.kube.client.transport import Transport, make_tls_context, open_socket

logger = logging.getLogger(__name__)

_CHANNELS = Subprotocol("v4.channel.k8s.io")
_DATA, _ERROR = 0, 1  # the two channels of a port
_CHUNK_BYTES = 64 << 10
_HELD_BYTES = 256 << 10
_FLUSH_S = 5.0
_POLL_S = 60.0


def open_stream(
    transport: Transport, path: str, port: int, *, description: str, timeout_s: float
) -> PodStream:
    """Return a stream to a port in a pod. `description` names the request in errors and logs."""
    return PodStream(
        _open_websocket(transport, path, port, description=description, timeout_s=timeout_s)
    )


def open_forward(
    transport: Transport, path: str, port: int, *, description: str, timeout_s: float
) -> socket.socket:
    """Return one end of a socket pair. A thread copies between the other end and the pod."""
    websocket = _open_websocket(transport, path, port, description=description, timeout_s=timeout_s)
    ours, theirs = socket.socketpair()
    pump = _Pump(websocket, theirs, name=description)
    threading.Thread(target=pump.run, name=f"windlass-forward-{port}", daemon=True).start()
    return ours


def _open_websocket(
    transport: Transport, path: str, port: int, *, description: str, timeout_s: float
) -> _Websocket:
    end_s = time.monotonic() + timeout_s
    url = f"{transport.target.server}{path}?{urlencode({'ports': port})}"
    login = transport.login.current()
    try:
        try:
            return _Websocket(transport, url, end_s=end_s, description=description)
        except Unauthorized:
            if not transport.login.renew(login):
                raise
            return _Websocket(transport, url, end_s=end_s, description=description)
    except (OSError, InvalidHandshake) as error:
        raise make_unreachable(error, where=transport.where, deadline_s=timeout_s) from error


class _Websocket:
    """Websocket to a pod's port: its socket, the protocol's state, and buffered data."""

    def __init__(self, transport: Transport, url: str, *, end_s: float, description: str) -> None:
        target, login = transport.target, transport.login.current()
        context = make_tls_context(target, login) if url.startswith("https:") else None
        left_s = max(0.1, end_s - time.monotonic())
        self.sock = open_socket(target, context, proxy=transport.proxy, timeout_s=left_s)
        self.inbound = bytearray()  # data from the pod that has not been read yet
        self.outbound = bytearray()  # frames that have not been sent yet
        self._description = description
        self._opened: set[int] = set()
        self._channel = _DATA
        self._has_error = False
        self._protocol = ClientProtocol(
            parse_uri(url.replace("http", "ws", 1)), subprotocols=[_CHANNELS], max_size=None
        )
        try:
            request = self._protocol.connect()
            for name, value in login.headers:
                request.headers[name] = value
            self._protocol.send_request(request)
            self._shake_hands(end_s)
        except InvalidStatus as error:
            self.sock.close()
            answer = error.response
            raise read_refusal(
                answer.status_code,
                bytes(answer.body or b""),
                description=description,
                where=transport.where,
            ) from error
        except BaseException:
            self.sock.close()
            raise
        self.sock.setblocking(False)

    def _shake_hands(self, end_s: float) -> None:
        """Wait until the server has accepted and both channels have sent their port number."""
        while True:
            self.sock.settimeout(max(0.001, end_s - time.monotonic()))
            self._render_frames()
            if self.outbound:
                self.sock.sendall(self.outbound)
                self.outbound.clear()
            if self._protocol.handshake_exc is not None:
                raise self._protocol.handshake_exc
            self._read_frames()
            if len(self._opened) == 2 or self.is_ended:
                return
            if data := self.sock.recv(_CHUNK_BYTES):
                self._protocol.receive_data(data)
            else:
                self._protocol.receive_eof()

    @property
    def is_ended(self) -> bool:
        """True if no more data will arrive."""
        return self._has_error or self._protocol.state not in (State.CONNECTING, State.OPEN)

    def _read_frames(self) -> None:
        """Process received frames: data, errors, and the port number that starts each channel."""
        for event in self._protocol.events_received():
            if not isinstance(event, Frame) or not event.data:
                continue
            data = memoryview(event.data)
            if event.opcode is Opcode.BINARY:
                self._channel, data = data[0], data[1:]
                if self._channel not in self._opened:
                    self._opened.add(self._channel)
                    data = data[2:]
            elif event.opcode is not Opcode.CONT:
                continue
            if self._channel == _DATA:
                self.inbound += data
            elif self._channel == _ERROR and data:
                text = " ".join(bytes(data).decode(errors="replace").split())
                logger.info("could not %s: %s", self._description, text)
                self._has_error = True

    def _render_frames(self) -> None:
        """Move frames from the protocol to `outbound`, including its pongs."""
        for data in self._protocol.data_to_send():
            self.outbound += data

    def receive(self) -> bool:
        """Read from the socket once. Return False if there was no data, or at the end."""
        try:
            data = self.sock.recv(_CHUNK_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            data = b""
        if data:
            self._protocol.receive_data(data)
        else:
            self._protocol.receive_eof()
        self._read_frames()
        self._render_frames()
        return bool(data)

    def has_decrypted(self) -> bool:
        """Return whether TLS has buffered decrypted bytes, which a poll of the socket does not report."""
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def send(self, data: bytes) -> None:
        """Queue data for the pod. `flush` writes it."""
        try:
            self._protocol.send_binary(bytes((_DATA,)) + data)
        except InvalidState as error:
            raise ConnectionResetError("the API server closed the connection") from error
        self._render_frames()

    def send_close(self) -> None:
        """Queue a close frame, unless the connection is already closing."""
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._render_frames()

    def flush(self) -> None:
        """Write as much as the socket accepts now."""
        while self.outbound:
            try:
                num_bytes = self.sock.send(memoryview(self.outbound)[:_CHUNK_BYTES])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            del self.outbound[:num_bytes]


class PodStream:
    """A pod's port as a blocking stream with a timeout, read and written by one thread at a time."""

    def __init__(self, websocket: _Websocket) -> None:
        self._websocket = websocket
        self._timeout_s: float | None = None

    def settimeout(self, timeout_s: float | None) -> None:
        """Set the timeout of each `recv` and `sendall`. With 0, neither blocks."""
        self._timeout_s = timeout_s

    def fileno(self) -> int:
        return self._websocket.sock.fileno()

    def pending(self) -> bool:
        """Return whether data is buffered, which a poll of the socket does not report."""
        return bool(self._websocket.inbound) or self._websocket.has_decrypted()

    def sendall(self, data: bytes) -> None:
        end_s = self._make_deadline_s()
        self._websocket.send(data)
        while True:
            self._websocket.flush()
            if not self._websocket.outbound:
                return
            self._wait(end_s, select.POLLOUT)

    def recv(self, size: int) -> bytes:
        """Return at most `size` bytes, or b"" at the end. Raise `TimeoutError` if no data arrives in time."""
        websocket, end_s = self._websocket, self._make_deadline_s()
        while not websocket.inbound and not websocket.is_ended:
            if not websocket.has_decrypted():
                self._wait(end_s, select.POLLIN)
            websocket.receive()
            websocket.flush()  # answers to pings
        data = bytes(websocket.inbound[:size])
        del websocket.inbound[:size]
        return data

    def _make_deadline_s(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _wait(self, end_s: float | None, event: int) -> None:
        if self._websocket.sock.fileno() < 0:
            raise ConnectionResetError("the connection was closed here")
        poll = select.poll()
        poll.register(self._websocket.sock, event)
        left_ms = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
        if not poll.poll(left_ms):
            raise TimeoutError("timed out")

    def close(self) -> None:
        """Send a close frame if the socket accepts it now, and close."""
        with contextlib.suppress(OSError):
            self._websocket.send_close()
            self._websocket.flush()
        self._websocket.sock.close()


class _Pump:
    """Loop that copies data between a websocket and a local socket until one side has finished."""

    def __init__(self, websocket: _Websocket, local: socket.socket, *, name: str) -> None:
        self._websocket = websocket
        self._local = local
        self._local.setblocking(False)
        self._name = name
        self._has_local_ended = False  # the local side will send no more data
        self._is_local_closed = False  # the local side no longer reads

    def run(self) -> None:
        try:
            while True:
                self._write_local()
                self._websocket.flush()
                if self._is_done():
                    break
                is_websocket_ready, is_local_ready = self._wait()
                if is_websocket_ready:
                    self._read_websocket()
                if is_local_ready:
                    self._read_local()
            self._send_close()
        except OSError as error:
            logger.info("%s: the connection broke: %s", self._name, error)
        finally:
            self._local.close()
            self._websocket.sock.close()

    def _is_done(self) -> bool:
        if self._websocket.is_ended:
            return not self._websocket.inbound or self._is_local_closed
        return self._is_local_closed and self._has_local_ended and not self._websocket.outbound

    def _may_receive(self) -> bool:
        return not self._websocket.is_ended and len(self._websocket.inbound) < _HELD_BYTES

    def _may_send(self) -> bool:
        is_open = not self._has_local_ended and not self._websocket.is_ended
        return is_open and len(self._websocket.outbound) < _HELD_BYTES

    def _read_websocket(self) -> None:
        while self._may_receive() and self._websocket.receive():
            pass

    def _write_local(self) -> None:
        inbound = self._websocket.inbound
        try:
            while inbound:
                num_bytes = self._local.send(memoryview(inbound)[:_CHUNK_BYTES])
                del inbound[:num_bytes]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._is_local_closed = True
            inbound.clear()

    def _read_local(self) -> None:
        while self._may_send():
            try:
                data = self._local.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if data:
                self._websocket.send(data)
            else:
                self._has_local_ended = True
            if len(data) < _CHUNK_BYTES:
                return  # there is probably no more data

    def _wait(self) -> tuple[bool, bool]:
        """Wait until a socket is ready. Return whether the websocket and the local socket may be read."""
        websocket = self._websocket
        may_receive, may_send = self._may_receive(), self._may_send()
        poll = select.poll()
        events = (select.POLLIN if may_receive else 0) | (
            select.POLLOUT if websocket.outbound else 0
        )
        if events:
            poll.register(websocket.sock, events)
        if not self._is_local_closed:
            events = (select.POLLIN if may_send else 0) | (
                select.POLLOUT if websocket.inbound else 0
            )
            poll.register(self._local, events)
        has_decrypted = may_receive and websocket.has_decrypted()
        # A closed local socket is no longer polled, but may have unread data.
        has_unread = may_send and self._is_local_closed
        ready = dict(poll.poll(0 if has_decrypted or has_unread else _POLL_S * 1000))
        of_local = ready.get(self._local.fileno(), 0)
        # POLLHUP means closed. A half-closed socket does not report it.
        if of_local & (select.POLLHUP | select.POLLERR):
            self._is_local_closed = True
            websocket.inbound.clear()
        return has_decrypted or websocket.sock.fileno() in ready, has_unread or bool(of_local)

    def _send_close(self) -> None:
        """Send the remaining data and a close frame, with a deadline because the server may not read."""
        websocket = self._websocket
        websocket.send_close()
        websocket.sock.settimeout(_FLUSH_S)
        if websocket.outbound:
            websocket.sock.sendall(websocket.outbound)

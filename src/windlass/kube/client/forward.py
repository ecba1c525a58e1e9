"""Port-forward to a pod over one websocket (`v4.channel.k8s.io`).

`open_forward` gives a local socket, which a thread serves. `Forward` is for speaking and listening
in turn, without a thread or a socket pair; `TlsOver` adds TLS inside it.
"""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import ssl
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any
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
DATA, _COMPLAINT = 0, 1
_CHUNK_BYTES = 64 << 10
_HELD_BYTES = 256 << 10
_FLUSH_S = 5.0
_LOOK_S = 60.0
_CLOSE_S = 1.0


def open_forward(
    transport: Transport, path: str, port: int, *, asked: str, timeout_s: float
) -> socket.socket:
    """Our end of a socket pair whose other end a thread carries to the pod."""
    wire = open_wire(transport, path, port, asked=asked, timeout_s=timeout_s)
    ours, theirs = socket.socketpair()
    sender = _Pump(wire, theirs, name=asked)
    threading.Thread(target=sender.run, name=f"windlass-forward-{port}", daemon=True).start()
    return ours


def open_wire(
    transport: Transport, path: str, port: int, *, asked: str, timeout_s: float
) -> Websocket:
    """Return the websocket itself, which `Forward` reads and writes in turn without a thread."""
    end_s = time.monotonic() + timeout_s
    url = f"{transport.target.server}{path}?{urlencode({'ports': port})}"
    login = transport.login.current()
    try:
        try:
            return Websocket(transport, url, end_s=end_s, asked=asked)
        except Unauthorized:
            if not transport.login.renew(login):
                raise
            return Websocket(transport, url, end_s=end_s, asked=asked)
    except (OSError, InvalidHandshake) as error:
        raise make_unreachable(error, where=transport.where, deadline_s=timeout_s) from error


class Websocket:
    """The websocket: TLS socket, protocol state, and the bytes between them."""

    def __init__(self, transport: Transport, url: str, *, end_s: float, asked: str) -> None:
        target, login = transport.target, transport.login.current()
        context = make_tls_context(target, login) if url.startswith("https:") else None
        left_s = max(0.1, end_s - time.monotonic())
        self.sock = open_socket(target, context, proxy=transport.proxy, timeout_s=left_s)
        self.out = bytearray()
        self.early: list[tuple[int, bytes]] = []
        self._opened: set[int] = set()
        self._channel = DATA
        self.protocol = ClientProtocol(
            parse_uri(url.replace("http", "ws", 1)), subprotocols=[_CHANNELS], max_size=None
        )
        try:
            request = self.protocol.connect()
            for name, value in login.headers:
                request.headers[name] = value
            self.protocol.send_request(request)
            self._shake_hands(end_s)
        except InvalidStatus as error:
            self.sock.close()
            answer = error.response
            raise read_refusal(
                answer.status_code, bytes(answer.body or b""), asked=asked, where=transport.where
            ) from error
        except BaseException:
            self.sock.close()
            raise
        self.sock.setblocking(False)

    def _shake_hands(self, end_s: float) -> None:
        """Until the server agreed and both channels said their port, or said why not."""
        while True:
            self.sock.settimeout(max(0.001, end_s - time.monotonic()))
            self.take()
            if self.out:
                self.sock.sendall(self.out)
                self.out.clear()
            if self.protocol.handshake_exc is not None:
                raise self.protocol.handshake_exc
            self.early += self.frames()
            if len(self._opened) == 2 or self.is_ended:
                return
            if data := self.sock.recv(_CHUNK_BYTES):
                self.protocol.receive_data(data)
            else:
                self.protocol.receive_eof()

    @property
    def is_ended(self) -> bool:
        return self.protocol.state not in (State.CONNECTING, State.OPEN)

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """What came in since the last call, as channel and data, less the port numbers."""
        for event in self.protocol.events_received():
            if not isinstance(event, Frame) or not event.data:
                continue
            data = bytes(event.data)
            if event.opcode is Opcode.BINARY:
                self._channel, data = data[0], data[1:]
                if self._channel not in self._opened:
                    self._opened.add(self._channel)
                    data = data[2:]
            elif event.opcode is not Opcode.CONT:
                continue
            if data:
                yield self._channel, data

    def send(self, data: bytes) -> None:
        try:
            self.protocol.send_binary(bytes((DATA,)) + data)
        except InvalidState as error:
            raise ConnectionResetError("the API server is hanging up") from error
        self.take()

    def take(self) -> None:
        """Move what the protocol wants sent (also pongs) to where the socket takes it from."""
        for data in self.protocol.data_to_send():
            self.out += data

    def receive(self) -> bool:
        """Read once; False when nothing is there. The end of the stream becomes the protocol's."""
        try:
            data = self.sock.recv(_CHUNK_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return False
        except OSError:
            data = b""
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        self.take()
        return bool(data)

    def has_kept(self) -> bool:
        return isinstance(self.sock, ssl.SSLSocket) and self.sock.pending() > 0

    def flush(self) -> None:
        """Write what the socket takes now."""
        while self.out:
            try:
                num_bytes = self.sock.send(memoryview(self.out)[:_CHUNK_BYTES])
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            del self.out[:num_bytes]


class _Pump:
    """Carries bytes both ways until one side is done."""

    def __init__(self, wire: Websocket, local: socket.socket, *, name: str) -> None:
        self._wire = wire
        self._local = local
        self._local.setblocking(False)
        self._name = name
        self._inbound = bytearray()
        self._is_wire_ended = False
        self._is_local_silent = False  # it will send no more
        self._is_local_gone = False  # nor will it read

    def run(self) -> None:
        try:
            self._take_frames(self._wire.early)
            self._is_wire_ended = self._is_wire_ended or self._wire.is_ended
            while True:
                self._write_local()
                self._wire.flush()
                if self._is_done():
                    break
                is_wire_ready, is_local_ready = self._wait()
                if is_wire_ready:
                    self._read_wire()
                if is_local_ready:
                    self._read_local()
            self._say_goodbye()
        except OSError as error:
            logger.info("%s: the connection broke: %s", self._name, error)
        finally:
            self._local.close()
            self._wire.sock.close()

    def _is_done(self) -> bool:
        if self._is_wire_ended:
            return not self._inbound or self._is_local_gone
        return self._is_local_gone and self._is_local_silent and not self._wire.out

    def _read_wire(self) -> None:
        while not self._is_wire_ended and len(self._inbound) < _HELD_BYTES:
            has_more = self._wire.receive()
            self._take_frames(self._wire.frames())
            self._is_wire_ended = self._is_wire_ended or self._wire.is_ended
            if not has_more:
                return

    def _take_frames(self, frames: Iterable[tuple[int, bytes]]) -> None:
        for channel, data in frames:
            if channel == DATA:
                self._inbound += data
            elif channel == _COMPLAINT:
                text = " ".join(data.decode(errors="replace").split())
                logger.info("could not %s: %s", self._name, text)
                self._is_wire_ended = True

    def _write_local(self) -> None:
        try:
            while self._inbound:
                num_bytes = self._local.send(memoryview(self._inbound)[:_CHUNK_BYTES])
                del self._inbound[:num_bytes]
        except BlockingIOError:
            return
        except (BrokenPipeError, ConnectionResetError):
            self._is_local_gone = True
            self._inbound.clear()

    def _read_local(self) -> None:
        while self._may_take():
            try:
                data = self._local.recv(_CHUNK_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                data = b""
            if data:
                self._wire.send(data)
            else:
                self._is_local_silent = True
            if len(data) < _CHUNK_BYTES:
                return  # most likely that was all: another call would only find nothing

    def _wait(self) -> tuple[bool, bool]:
        """Until a socket can do what we want of it; whether wire and local are worth reading."""
        wire = self._wire
        may_receive = not self._is_wire_ended and len(self._inbound) < _HELD_BYTES
        may_take = self._may_take()
        poll = select.poll()
        wants = (select.POLLIN if may_receive else 0) | (select.POLLOUT if wire.out else 0)
        if wants:
            poll.register(wire.sock, wants)
        if not self._is_local_gone:
            wants = (select.POLLIN if may_take else 0) | (select.POLLOUT if self._inbound else 0)
            poll.register(self._local, wants)
        # TLS may hold what it has decrypted already, which no socket will announce; and of a socket
        # that was closed we no longer ask whether there is more to read.
        has_kept = may_receive and wire.has_kept()
        has_left = may_take and self._is_local_gone
        ready = dict(poll.poll(0 if has_kept or has_left else _LOOK_S * 1000))
        of_local = ready.get(self._local.fileno(), 0)
        # A half-closed socket does not hang up; one that was closed does, whatever we asked for.
        if of_local & (select.POLLHUP | select.POLLERR):
            self._is_local_gone = True
            self._inbound.clear()
        return has_kept or wire.sock.fileno() in ready, has_left or bool(of_local)

    def _may_take(self) -> bool:
        is_open = not self._is_local_silent and not self._is_wire_ended
        return is_open and len(self._wire.out) < _HELD_BYTES

    def _say_goodbye(self) -> None:
        """Send what is left and a close frame, within a deadline, to a server that may not care."""
        wire = self._wire
        if wire.protocol.state is State.OPEN:
            wire.protocol.send_close(1000)
            wire.take()
        wire.sock.settimeout(_FLUSH_S)
        if wire.out:
            wire.sock.sendall(wire.out)


class Forward:
    """The bytes of a websocket, as a stream."""

    def __init__(self, wire: Websocket) -> None:
        self._wire = wire
        self._come = bytearray()
        self._timeout_s: float | None = None
        self._is_ended = False
        self._take(wire.early)

    def settimeout(self, timeout_s: float | None) -> None:
        self._timeout_s = timeout_s

    def fileno(self) -> int:
        return self._wire.sock.fileno()

    @property
    def has_kept(self) -> bool:
        """Whether something has come that the socket will not announce."""
        return bool(self._come) or self._wire.has_kept()

    def sendall(self, data: bytes) -> None:
        end_s = self._end_s()
        self._wire.send(bytes(data))
        while True:
            self._wire.flush()
            if not self._wire.out:
                return
            self._wait(end_s, write=True)

    def recv(self, size: int) -> bytes:
        """What has come, at most so much; nothing at the end; TimeoutError when nothing comes in time."""
        end_s = self._end_s()
        while not self._come and not self._is_ended:
            if not self._wire.has_kept():
                self._wait(end_s)
            self._wire.receive()
            self._take(self._wire.frames())
            self._wire.flush()  # answers to pings
            self._is_ended = self._is_ended or self._wire.is_ended
        data = bytes(self._come[:size])
        del self._come[:size]
        return data

    def _take(self, frames: object) -> None:
        for channel, data in frames:  # type: ignore[attr-defined]
            if channel == DATA:
                self._come += data
            else:  # what the node complains of ends it
                self._is_ended = True

    def _end_s(self) -> float | None:
        return None if self._timeout_s is None else time.monotonic() + self._timeout_s

    def _wait(self, end_s: float | None, *, write: bool = False) -> None:
        if self._wire.sock.fileno() < 0:
            raise ConnectionResetError("the line was closed")
        poll = select.poll()
        poll.register(self._wire.sock, select.POLLOUT if write else select.POLLIN)
        left_ms = None if end_s is None else max(0.0, end_s - time.monotonic()) * 1000
        if not poll.poll(left_ms):
            raise TimeoutError("nothing came in time")

    def close(self) -> None:
        """Hang up; the server may take it as it likes."""
        with contextlib.suppress(OSError, ssl.SSLError):
            if not self._wire.is_ended:
                self._wire.protocol.send_close(1000)
            self._wire.take()
            self._wire.flush()
        self._wire.sock.close()


class TlsOver:
    """TLS over any stream."""

    def __init__(self, stream: Forward, context: ssl.SSLContext, *, server_hostname: str) -> None:
        self._stream = stream
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=server_hostname)
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                self._exchange()
                continue
            self._flush()
            return

    def settimeout(self, timeout_s: float | None) -> None:
        self._stream.settimeout(timeout_s)

    def fileno(self) -> int:
        return self._stream.fileno()

    def pending(self) -> bool:
        return self._tls.pending() > 0 or self._in.pending > 0 or self._stream.has_kept

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
                self._exchange()
            except ssl.SSLZeroReturnError:
                return None

    def _exchange(self) -> None:
        self._flush()
        data = self._stream.recv(_CHUNK_BYTES)
        if not data:
            raise ConnectionResetError("the pod hung up")
        self._in.write(data)

    def _flush(self) -> None:
        if data := self._out.read():
            self._stream.sendall(data)

    def close(self) -> None:
        """Say goodbye, and do not wait to hear it."""
        with contextlib.suppress(OSError, ssl.SSLError):
            self._stream.settimeout(_CLOSE_S)
            with contextlib.suppress(ssl.SSLWantReadError):
                self._tls.unwrap()
            self._flush()
        self._stream.close()

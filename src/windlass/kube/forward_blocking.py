"""A port in a pod for speaking and listening in turn: no thread, no socket pair, TLS inside if wanted.

A question over a forward with a thread wakes four threads, one without it two. What a stream must have to
be talked over is here, and no more.
"""

from __future__ import annotations

import contextlib
import select
import ssl
import time
from typing import Any

from windlass.kube.forward import DATA, Websocket

_CHUNK_BYTES = 64 << 10
_CLOSE_S = 1.0


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

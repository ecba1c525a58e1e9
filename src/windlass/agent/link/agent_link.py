"""Link: a connection that carries framed messages to and from one peer.

A reader iterates over the frames, or gets each of them in a callback as it arrives. This module does not
interpret frames. `agent.link.endpoints` establishes links.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import socket
import ssl
import struct
from collections.abc import AsyncGenerator, Callable
from typing import Any

from windlass import names
from windlass.agent.link.tcp import SHUTDOWN_TIMEOUT_S, render_address, render_trouble
from windlass.agent.silence_limits import HEARTBEAT_S
from windlass.errors import ProtocolError
from windlass.trusted import find_peer_fault
from windlass.wire.frames import Frame, FrameDecoder, render_pieces
from windlass.wire.message import Message
from windlass.wire.messages.link import Heartbeat

logger = logging.getLogger(__name__)

_READ_BYTES = 64 << 10  # larger read buffers are allocated and freed for every read
_UNREAD_BYTES = 512 << 10
_DRAIN_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 1.0
_AWAKE_EVERY_S = 0.5
_NO_LINGER = struct.pack("ii", 1, 0)


class Link(asyncio.Protocol):
    """One connection. `send` never blocks. If a write fails, reading ends as well."""

    def __init__(
        self,
        *,
        max_body_bytes: int = names.MAX_BODY_BYTES,
        on_made: Callable[[Link], None] | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_made = on_made
        self._transport: Any = None
        self._decoder = FrameDecoder(max_body_bytes=max_body_bytes)
        self._early: Frame | None = None  # the frame that `first` returned, still to be read
        self._take: Callable[[Frame], None] | None = None
        self._changed = asyncio.Event()  # set when data arrives or the link ends
        self._is_over = False
        self._ignores_frames = False  # the reader has stopped listening
        self._error: Exception | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._gone = asyncio.Event()
        self._clock: Callable[[], float] = self._loop.time
        self._received_s = 0.0
        self._fence_s = math.inf
        self._stall_s = math.inf
        self._awake_s = 0.0  # when this process is known to have run last
        self._has_left = False  # this end closed the link
        self.is_silent = False  # this end closed the link because the peer was silent
        self.has_stalled = False  # this process was suspended for longer than the peer tolerates
        self.is_closed = False  # the peer's machine closed the connection in an orderly way
        self.peer = ""
        self.certificate: dict[str, Any] | None = None  # None on one machine
        self.fault = ""  # why a peer on the same machine is not trusted

    # -- event loop callbacks ------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        transport.max_size = _READ_BYTES
        # read now, because a closed transport no longer has these details
        self.peer = render_address(transport.get_extra_info("peername"))
        if transport.get_extra_info("ssl_object") is not None:
            self.certificate = transport.get_extra_info("peercert") or {}
        else:
            self.fault = find_peer_fault(transport.get_extra_info("socket"))
        if self._on_made is not None:
            self._on_made(self)

    def data_received(self, data: bytes) -> None:
        now_s = self._clock()
        # this process was suspended, so the data is old and the peer has received nothing meanwhile
        if self._notice_stall() or now_s - self._received_s > self._fence_s:
            self._hang_up_on_silence()
            return
        self._received_s = now_s
        if self._ignores_frames:
            return
        self._decoder.feed(data)
        if self._take is not None:
            self._hand_over(self._take)
            return
        if self._decoder.num_unread > _UNREAD_BYTES:
            self._transport.pause_reading()
        self._changed.set()

    def eof_received(self) -> bool:
        self.is_closed = not self._has_left
        self._end()
        return self.certificate is None  # keep the write side open, as the peer may still read

    def connection_lost(self, error: Exception | None) -> None:
        if isinstance(error, ssl.SSLError):
            error = ProtocolError(f"{self.peer}: {render_trouble(error)}")
        self.is_closed |= error is None and not self._has_left
        self._end(error if isinstance(error, ProtocolError) else None)
        self._gone.set()
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    # -- sending -------------------------------------------------------------------------------

    def send(self, message: Message, body: bytes = b"") -> None:
        if self._transport.is_closing():
            return
        for piece in render_pieces(message, (body,)):
            self._transport.write(piece)

    async def drain(self, *, timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """Wait until the write buffer is nearly empty. Raise ConnectionError if the peer is gone.

        A caller that drains after each piece keeps at most a few pieces in memory. TLS may buffer one frame
        beyond the limit of the socket, so this does not wait for a single huge frame.
        """
        if self._writable.is_set():
            await asyncio.sleep(0)  # let other tasks run
        else:
            await self._wait_to_write(timeout_s)
        if self._gone.is_set():
            raise ConnectionResetError(f"{self.peer} is gone")

    async def _wait_to_write(self, timeout_s: float) -> None:
        try:
            await asyncio.wait_for(self._writable.wait(), timeout_s)
        except asyncio.TimeoutError as error:
            raise ConnectionAbortedError(
                f"{self.peer} has not read anything for {timeout_s:g} s"
            ) from error

    # -- receiving -----------------------------------------------------------------------------

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Yield frames until the peer hangs up."""
        while True:
            while (frame := self._take_early() or self._decoder.take()) is not None:
                yield frame
            if self._is_over:
                break
            await self._wait()
        self._check_end()

    async def listen(self, take: Callable[[Frame], None]) -> None:
        """Pass frames to `take` as they arrive, until the peer hangs up.

        If `take` raises, stop listening and raise the exception here.
        """
        self._take = take
        try:
            if early := self._take_early():
                take(early)
            self._hand_over(take)
            while not self._is_over:
                await self._wait()
        finally:
            self._take = None
        self._check_end()

    def stop_listening(self) -> None:
        """Stop listening, and ignore all later frames."""
        self._ignores_frames = True
        self._end()

    async def first(self) -> Frame:
        """Return the first frame without consuming it."""
        frames = self.frames()
        try:
            frame = await frames.__anext__()
        except StopAsyncIteration:
            raise ConnectionResetError(
                f"{self.peer} closed the connection without sending anything"
            ) from None
        finally:
            await frames.aclose()
        self._early = frame
        return frame

    def _take_early(self) -> Frame | None:
        frame, self._early = self._early, None
        return frame

    def _hand_over(self, take: Callable[[Frame], None]) -> None:
        try:
            while not self._ignores_frames and (frame := self._decoder.take()) is not None:
                take(frame)
        except Exception as error:  # noqa: BLE001 - raised to the listener
            self._ignores_frames = True
            self._end(error)

    async def _wait(self) -> None:
        """Wait until data arrives or the link ends."""
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._changed.clear()
        await self._changed.wait()

    def _end(self, error: Exception | None = None) -> None:
        self._error = self._error or error
        self._is_over = True
        self._changed.set()

    def _check_end(self) -> None:
        if self._error is not None:
            raise self._error
        if not self._decoder.is_between_frames:
            logger.warning("%s hung up in the middle of a frame", self.peer)

    # -- the end -------------------------------------------------------------------------------

    def watch(
        self,
        limit_s: float,
        *,
        clock: Callable[[], float] | None = None,
        stall_s: float = math.inf,
    ) -> None:
        """Hang up if the peer sends nothing for `limit_s`, and set `is_silent`.

        Checks once per `limit_s` instead of starting a timer for every frame. With a `clock`, that clock
        measures the time, and data that arrives after the limit is ignored. This process may have been
        suspended, and the peer may have given up on it. After a stall of `stall_s` the peer has certainly
        done so, because a suspended process sends nothing.
        """
        if clock is not None:
            self._clock, self._fence_s = clock, limit_s
        self._received_s = self._clock()
        if stall_s < math.inf:
            self._awake_s, self._stall_s = self._clock(), stall_s
            self._keep_awake()

        def check() -> None:
            left_s = self._received_s + limit_s - self._clock()
            if self._transport.is_closing():
                return
            if left_s <= 0:
                self._hang_up_on_silence()
            else:
                self._loop.call_later(left_s, check)

        self._loop.call_later(limit_s, check)

    def _keep_awake(self) -> None:
        """Check for a stall at intervals. After a stall, this may run before the loop reads pending data."""
        if self._transport.is_closing():
            return
        if self._notice_stall():
            self._hang_up_on_silence()
            return
        self._awake_s = self._clock()
        self._loop.call_later(min(_AWAKE_EVERY_S, self._stall_s / 4), self._keep_awake)

    def _notice_stall(self) -> bool:
        self.has_stalled |= self._clock() - self._awake_s > self._stall_s
        return self.has_stalled

    def _hang_up_on_silence(self) -> None:
        self.is_silent = True
        self.cut()

    @property
    def received_s(self) -> float:
        """Time of the last received data, by the clock of `watch`."""
        return self._received_s

    @property
    def silent_for_s(self) -> float:
        """Seconds since data was last received."""
        return self._clock() - self._received_s

    def cut(self) -> None:
        """Abort the connection immediately. Unsent data is lost, and the peer sees no orderly close."""
        self._has_left = True
        if self.certificate is not None:
            with contextlib.suppress(OSError, AttributeError):
                connection = self._transport.get_extra_info("socket")
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()

    def trust(self) -> None:
        """Accept large bodies from now on, because the peer has sent a valid hello."""
        self._decoder.max_body_bytes = names.MAX_BODY_BYTES

    async def close(self) -> None:
        """Send the remaining data, then hang up."""
        self._has_left = True
        with contextlib.suppress(OSError):
            await self.drain(timeout_s=_CLOSE_TIMEOUT_S)
        # closing twice makes later calls on the transport fail on Python 3.11.2
        if not self._transport.is_closing():
            self._transport.close()
        if self.certificate is not None:
            # TLS waits for the peer's close_notify, which may never arrive
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._gone.wait(), 2 * SHUTDOWN_TIMEOUT_S)
            self._transport.abort()  # on Python 3.10 nothing else limits the wait


async def beat(link: Link) -> None:
    """Send heartbeats until cancelled, so that the peer does not consider this end silent."""
    while True:
        link.send(Heartbeat())
        await asyncio.sleep(HEARTBEAT_S)

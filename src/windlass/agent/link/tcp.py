"""TCP with TLS for agents: listening, connecting, and a log of refused connections.

Peers that have not sent a hello yet are limited in number and in time. Each refusal is one log line, up to a
limit per minute. `agent.link.agent_link` handles the data of a connection. This module uses the standard
library only.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import socket
import ssl
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from windlass.errors import EngineError

logger = logging.getLogger(__name__)

_MAX_LINES = 100
_WINDOW_S = 60.0

_IN_WORDS = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "it presents no certificate",
    "HTTP_REQUEST": "it speaks HTTP, not TLS",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "it speaks an older TLS than 1.3",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "it requires a certificate, and none was presented",
    "TLSV1_ALERT_UNKNOWN_CA": "it does not trust the job's CA",
}
SHUTDOWN_TIMEOUT_S = 1.0
_MAX_PENDING = 64
_EVICT_AFTER_S = 0.5  # age at which a peer without a hello may be evicted to make room
_CONNECT_TIMEOUT_S = 2.0
_NAME_TIMEOUT_S = 2.0
_BACKLOG = 1024
_KEEPALIVE = (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
_LATER: dict[str, Any] = (  # arguments that Python 3.10 does not have
    {"ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S} if sys.version_info >= (3, 11) else {}
)

Introduced = Callable[[], None]
Greet = Callable[[socket.socket, Introduced], Awaitable[None]]


class RefusalLog:
    """Log of refused connections: at most 100 lines a minute, and a count of the rest."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self._num_lines = 0
        self._num_kept_back = 0

    def log(self, peer: str, why: str) -> None:
        now_s = time.monotonic()
        if now_s - self._since_s > _WINDOW_S:
            if self._num_kept_back:
                logger.warning("refused %d more links, not logged", self._num_kept_back)
            self._since_s, self._num_lines, self._num_kept_back = now_s, 0, 0
        if self._num_lines < _MAX_LINES:
            self._num_lines += 1
            logger.warning("refused a link from %s: %s", peer, why)
        else:
            self._num_kept_back += 1


def render_trouble(error: BaseException) -> str:
    """Return the reason why a connection failed, as one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not one of this job's: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        reason = error.reason or error.__class__.__name__
        return _IN_WORDS.get(reason, f"TLS failed ({reason.lower().replace('_', ' ')})")
    if isinstance(error, asyncio.TimeoutError) and not str(error):
        return "no answer in time"
    return str(error) or "it hung up"


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsPlace:
    """Address where a node listens. An empty host means all local addresses, and port 0 any free port."""

    host: str
    port: int
    context: ssl.SSLContext

    def __str__(self) -> str:
        return render_address((self.host or "*", self.port))


def _close(connection: socket.socket, _task: object) -> None:
    connection.close()


def render_address(address: object) -> str:
    """Return an address in the form that logs show."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "this machine"
    host = str(address[0]).removeprefix("::ffff:")
    return f"[{host}]:{address[1]}" if ":" in host else f"{host}:{address[1]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _PendingPeer:
    """Peer that has not sent a valid hello yet."""

    peer: str
    since_s: float
    timer: asyncio.TimerHandle


class Listener:
    """Listening socket. `greet` serves each connection, and reports a valid hello."""

    def __init__(self, place: TlsPlace, greet: Greet, *, hello_timeout_s: float) -> None:
        self._greet = greet
        self._hello_timeout_s = hello_timeout_s
        self._socket = _listen(place)
        self._pending: dict[asyncio.Task[None], _PendingPeer] = {}  # oldest first
        self._tasks: set[asyncio.Task[None]] = set()  # the loop keeps only weak references to tasks
        self._refusals = RefusalLog()
        self._room = asyncio.Event()
        self._accepting = asyncio.ensure_future(self._accept())

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1])

    def close(self) -> None:
        """Stop accepting connections, and close connections that have not sent a hello."""
        self._accepting.cancel()
        self._socket.close()
        for task in list(self._pending):
            self._introduce(task)
            task.cancel()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wait_for_room()
            try:
                connection, address = await loop.sock_accept(self._socket)
            except OSError as error:  # no file descriptors left, or the peer hung up
                logger.warning("cannot accept a connection: %s", error)
                await asyncio.sleep(_EVICT_AFTER_S)
                continue
            task = asyncio.ensure_future(self._host(connection))
            too_late = f"no hello within {self._hello_timeout_s:g} s"
            self._pending[task] = _PendingPeer(
                peer=render_address(address),
                since_s=loop.time(),
                timer=loop.call_later(self._hello_timeout_s, self._dismiss, task, too_late),
            )
            self._tasks.add(task)
            task.add_done_callback(self._leave)
            # also closes a connection whose task is cancelled before it runs
            task.add_done_callback(functools.partial(_close, connection))

    async def _wait_for_room(self) -> None:
        """Wait for room, and evict the oldest peer if needed. Genuine peers need only milliseconds."""
        while len(self._pending) >= _MAX_PENDING:
            self._room.clear()
            task, oldest = next(iter(self._pending.items()))
            left_s = oldest.since_s + _EVICT_AFTER_S - asyncio.get_running_loop().time()
            if left_s <= 0:
                self._dismiss(task, "no hello yet, and others are waiting")
                continue
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._room.wait(), left_s)

    async def _host(self, connection: socket.socket) -> None:
        task = asyncio.current_task()
        if task is None:
            return
        try:
            _tune(connection)
            await self._greet(connection, partial(self._introduce, task))
        except OSError as error:
            if (pending := self._pending.get(task)) is not None:
                self._refusals.log(pending.peer, render_trouble(error))

    def _introduce(self, task: asyncio.Task[None]) -> None:
        if (pending := self._pending.pop(task, None)) is not None:
            pending.timer.cancel()
            self._room.set()

    def _dismiss(self, task: asyncio.Task[None], why: str) -> None:
        if (pending := self._pending.get(task)) is not None:
            self._refusals.log(pending.peer, why)
            self._introduce(task)
            task.cancel()

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._introduce(task)
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.error("a link ended with an internal error", exc_info=error)


def _listen(place: TlsPlace) -> socket.socket:
    both = not place.host and socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both or ":" in place.host else socket.AF_INET
    try:
        listening = socket.create_server(
            (place.host, place.port), family=family, backlog=_BACKLOG, dualstack_ipv6=both
        )
    except (OSError, OverflowError) as error:
        raise EngineError(
            f"cannot listen at {place}: {error}",
            hint="another program on this machine or in this pod uses the port; choose another",
        ) from error
    listening.setblocking(False)
    return listening


async def shake_hands(
    protocol: asyncio.Protocol,
    connection: socket.socket,
    context: ssl.SSLContext,
    timeout_s: float,
) -> None:
    """Perform the TLS handshake with a peer, which must present a certificate."""
    await asyncio.get_running_loop().connect_accepted_socket(
        lambda: protocol, connection, ssl=context, ssl_handshake_timeout=timeout_s, **_LATER
    )


async def dial(
    protocol: asyncio.Protocol,
    place: TlsPlace,
    *,
    server_hostname: str,
    timeout_s: float,
    connect_s: float = _CONNECT_TIMEOUT_S,
) -> None:
    """Try once to connect to a node. Raise OSError or asyncio.TimeoutError on failure."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    connection = await _connect(place.host, place.port, min(connect_s, timeout_s))
    _tune(connection)
    await loop.create_connection(
        lambda: protocol,
        sock=connection,
        ssl=place.context,
        server_hostname=server_hostname,
        ssl_handshake_timeout=max(0.05, deadline - loop.time()),
        **_LATER,
    )


async def _connect(host: str, port: int, timeout_s: float) -> socket.socket:
    """Connect to the first address of `host` that answers. Each address may take `timeout_s`."""
    loop = asyncio.get_running_loop()
    asked = loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = await asyncio.wait_for(asked, max(timeout_s, _NAME_TIMEOUT_S))
    failure: Exception = OSError(f"{host} has no address")
    for family, kind, protocol, _, address in addresses:
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            await asyncio.wait_for(loop.sock_connect(connection, address), timeout_s)
        except (OSError, asyncio.TimeoutError) as error:
            connection.close()
            failure = error
        except BaseException:
            connection.close()
            raise
        else:
            return connection
    raise failure


def _tune(connection: socket.socket) -> None:
    """Disable delays for small frames, and enable keepalive to detect a lost machine while idle."""
    try:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if (option := getattr(socket, name, None)) is not None:
                connection.setsockopt(socket.IPPROTO_TCP, option, value)
    except OSError:
        connection.close()
        raise

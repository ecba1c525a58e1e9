"""Endpoints of links between agents, and between a client and the lead.

On one machine a link is a Unix socket in a folder of mode 0700. Between machines it is TCP with mutual TLS.
The first frame is a hello. If the version, job or certificate of a peer does not match, the peer is refused
and gets the reason. This module does not interpret later frames.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, overload

from windlass.agent.link.agent_link import Link
from windlass.agent.link.tcp import (
    Introduced,
    Listener,
    RefusalLog,
    TlsPlace,
    dial,
    render_trouble,
    shake_hands,
)
from windlass.errors import ProtocolError
from windlass.wire.frames import Frame, check_hello, make_hello, refusal
from windlass.wire.messages.link import Hello, Refused, Welcome
from windlass.wire.tls import read_role, server_name

logger = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 5.0  # from the first packet to the hello, including the TLS handshake
_RETRY_S = 0.02
# Between machines, the pause between attempts and the timeout of each attempt grow. The first packet to a
# node may be dropped while its network rules are being created, and TCP would retransmit it only after a
# second. An untrusted peer may be the previous owner of an address, so it is retried for a while.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 0.5
_DISTRUST_S = 5.0

Place = Path | TlsPlace


Frames = AsyncIterator[Frame]
Handler = Callable[[Link, Hello, Frames], Awaitable[None]]


@overload
async def serve(place: Path, job_id: str, handler: Handler) -> asyncio.AbstractServer: ...
@overload
async def serve(place: TlsPlace, job_id: str, handler: Handler) -> Listener: ...
async def serve(place: Place, job_id: str, handler: Handler) -> asyncio.AbstractServer | Listener:
    """Accept links at `place`, and pass each one to `handler` after a valid hello."""
    refusals = RefusalLog()
    # a `Listener` has one deadline for the handshake and the hello together
    timeout_s = None if isinstance(place, TlsPlace) else _HELLO_TIMEOUT_S

    async def greet(link: Link, introduced: Introduced = lambda: None) -> None:
        frames = link.frames()
        try:
            if link.fault:
                refusals.log(link.peer, link.fault)
                return
            first = await _read_hello(frames, timeout_s)
            if isinstance(first, str):
                refusals.log(link.peer, first)
                return
            hello = check_hello(first.header, job_id=job_id)
            _check_certificate(link, hello)
            introduced()
            link.trust()
            link.send(Welcome())
            await handler(link, hello, frames)
        except ProtocolError as error:
            refusals.log(link.peer, error.message)
            link.send(Refused(why=error.message, hint=error.hint))
        except asyncio.CancelledError:
            pass
        finally:
            await link.close()

    if isinstance(place, TlsPlace):
        context = place.context

        async def host(connection: socket.socket, introduced: Introduced) -> None:
            link = Link(max_body_bytes=0)
            await shake_hands(link, connection, context, _HELLO_TIMEOUT_S)
            await greet(link, introduced)

        return Listener(place, host, hello_timeout_s=_HELLO_TIMEOUT_S)
    return await _serve_unix(place, greet)


async def _serve_unix(
    path: Path, greet: Callable[[Link], Awaitable[None]]
) -> asyncio.AbstractServer:
    tasks: set[asyncio.Future[None]] = set()  # the loop keeps only weak references to tasks

    def host(link: Link) -> None:
        task = asyncio.ensure_future(greet(link))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: Link(max_body_bytes=0, on_made=host), str(path))


async def _read_hello(frames: AsyncIterator[Frame], timeout_s: float | None) -> Frame | str:
    """Return the first frame, or the reason why none arrived."""
    try:
        return await asyncio.wait_for(frames.__anext__(), timeout_s)
    except StopAsyncIteration:
        return "it closed the connection before its hello"
    except asyncio.TimeoutError:
        return f"no hello within {timeout_s:g} s"


def _check_certificate(link: Link, hello: Hello) -> None:
    """Raise unless the certificate, if any, names the job and the role of the hello."""
    if link.certificate is None:
        return
    job_id, role = read_role(link.certificate)
    if (job_id, role) != (hello.job_id, hello.role):
        raise ProtocolError(
            f"the peer claims to be {hello.role} of {hello.job_id}, but "
            f"its certificate says {role} of {job_id}",
            hint="use the certificate of that role",
        )


async def connect(
    place: Place,
    *,
    role: str,
    job_id: str,
    node: int | None,
    timeout_s: float,
    also: Mapping[str, Any] | None = None,
) -> Link:
    """Connect to the lead, which may not be running yet. `also` holds more fields of the hello.

    Raise OSError if the lead cannot be reached, and ProtocolError if it is untrusted or refuses the link.
    """
    hello = make_hello(role=role, job_id=job_id, node=node).replaced(**(also or {}))
    if isinstance(place, TlsPlace):
        return await _connect_tls(place, hello, timeout_s)
    return await _connect_unix(place, hello, timeout_s)


async def _connect_unix(path: Path, hello: Hello, timeout_s: float) -> Link:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            _, link = await loop.create_unix_connection(Link, str(path))
            break
        except (FileNotFoundError, ConnectionRefusedError):
            # a lead removes its folder when it ends
            if loop.time() > deadline or not path.parent.exists():
                raise
            await asyncio.sleep(_RETRY_S)
    if link.fault:
        await link.close()
        raise ProtocolError(f"{link.fault} at {path}", hint="remove it, then submit the job again")
    link.send(hello)
    return link


async def _connect_tls(place: TlsPlace, hello: Hello, timeout_s: float) -> Link:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pause_s = _FIRST_PAUSE_S
    distrusted_at_s: float | None = None
    logged = ""
    while True:
        try:
            left_s = max(pause_s, deadline - loop.time())
            return await _try_tls(place, hello, left_s, connect_s=5 * pause_s)
        except _Distrust as error:
            problem: Exception = error
            if distrusted_at_s is None:
                distrusted_at_s = loop.time()
                logger.warning("%s: %s", place, error)
            if min(deadline, distrusted_at_s + _DISTRUST_S) <= loop.time() + pause_s:
                raise ProtocolError(
                    f"{place} is not trusted, or does not trust this job: {error}",
                    hint="another job's node or another program answers there, or the job's "
                    "certificates have expired; submit the job again",
                ) from error
        except (OSError, asyncio.TimeoutError) as error:
            problem, distrusted_at_s = error, None
        logged = _log_change(place, problem, logged)
        if loop.time() + pause_s > deadline:
            why = render_trouble(problem)
            raise TimeoutError(f"cannot reach {place} within {timeout_s:g} s: {why}") from problem
        await asyncio.sleep(pause_s)
        pause_s = min(_LAST_PAUSE_S, pause_s * 1.5)


def _log_change(place: TlsPlace, problem: Exception, logged: str) -> str:
    """Log a problem unless it is the same as the last one, and return its text."""
    why = render_trouble(problem)
    if why != logged:
        logger.info("%s cannot be reached yet: %s", place, why)
    return why


class _Distrust(Exception):
    """One side rejected the other's certificate. Retried for a short time only."""


async def _try_tls(place: TlsPlace, hello: Hello, left_s: float, *, connect_s: float) -> Link:
    """Try once to connect. Return after the welcome, which shows that the peer accepted the certificate."""
    name = server_name(hello.job_id)
    timeout_s = min(_HELLO_TIMEOUT_S, left_s)
    link = Link()
    try:
        await dial(link, place, server_hostname=name, timeout_s=timeout_s, connect_s=connect_s)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise ConnectionResetError(
            "the peer closed the connection during the TLS handshake"
        ) from error
    except ssl.SSLError as error:
        raise _Distrust(render_trouble(error)) from error
    try:
        link.send(hello)
        first = await asyncio.wait_for(link.first(), timeout_s)
        if refused := refusal(first.header):
            raise refused
    except BaseException as error:
        await link.close()
        if isinstance(error, ConnectionError):
            raise _Distrust("it hung up after receiving our certificate") from error
        raise
    return link

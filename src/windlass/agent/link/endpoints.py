"""How links between agents, and between a client and the lead, come to be.

On one machine a link is a Unix socket in a folder of mode 0700; between machines it is TCP with mutual TLS.
The first frame is a hello; a peer that speaks another version or for another job, or is not what its
certificate says, is told so and hung up on. What is said afterwards is nobody's business here.
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

_HELLO_TIMEOUT_S = 5.0  # from the first packet to the hello, a TLS handshake included
_RETRY_S = 0.02
# Between machines, tries come ever slower, and each is given ever more time: the first packet to a node
# whose rules are just being made is dropped, and TCP itself would wait a second before it sends another.
# A peer that is not trusted may be the last owner of an address.
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
    """Take links at `place`; `handler` gets each one that has introduced itself properly."""
    refusals = RefusalLog()
    # a listener has one deadline for handshake and hello together
    timeout_s = None if isinstance(place, TlsPlace) else _HELLO_TIMEOUT_S

    async def greet(link: Link, introduced: Introduced = lambda: None) -> None:
        frames = link.frames()
        try:
            if link.fault:
                refusals.log(link.peer, link.fault)
                return
            first = await _hear_hello(frames, timeout_s)
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
    guests: set[asyncio.Future[None]] = set()  # the loop alone would let them be collected

    def host(link: Link) -> None:
        guest = asyncio.ensure_future(greet(link))
        guests.add(guest)
        guest.add_done_callback(guests.discard)

    loop = asyncio.get_running_loop()
    return await loop.create_unix_server(lambda: Link(max_body_bytes=0, on_made=host), str(path))


async def _hear_hello(frames: AsyncIterator[Frame], timeout_s: float | None) -> Frame | str:
    """The first frame, or why there is none."""
    try:
        return await asyncio.wait_for(frames.__anext__(), timeout_s)
    except StopAsyncIteration:
        return "it hung up before its hello"
    except asyncio.TimeoutError:
        return f"no hello within {timeout_s:g} s"


def _check_certificate(link: Link, hello: Hello) -> None:
    """Between machines nobody is believed: the certificate must say what the hello says."""
    if link.certificate is None:
        return
    job_id, role = read_role(link.certificate)
    if (job_id, role) != (hello.job_id, hello.role):
        raise ProtocolError(
            f"the peer calls itself {hello.role} of {hello.job_id}, "
            f"its certificate says {role} of {job_id}",
            hint="each role has a certificate of its own",
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
    """Reach the lead, which may not be there yet; `also` is what else the hello says.

    OSError when it never comes; ProtocolError when it is not ours, or does not want us.
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
            # a lead that has ended takes its folder with it
            if loop.time() > deadline or not path.parent.exists():
                raise
            await asyncio.sleep(_RETRY_S)
    if link.fault:
        await link.close()
        raise ProtocolError(f"{link.fault} at {path}", hint="remove it, and start the job again")
    link.send(hello)
    return link


async def _connect_tls(place: TlsPlace, hello: Hello, timeout_s: float) -> Link:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    pause_s = _FIRST_PAUSE_S
    distrusted_at_s: float | None = None
    said = ""
    while True:
        try:
            left_s = max(pause_s, deadline - loop.time())
            return await _try_tls(place, hello, left_s, connect_s=5 * pause_s)
        except _Distrust as error:
            trouble: Exception = error
            if distrusted_at_s is None:
                distrusted_at_s = loop.time()
                logger.warning("%s: %s", place, error)
            if min(deadline, distrusted_at_s + _DISTRUST_S) <= loop.time() + pause_s:
                raise ProtocolError(
                    f"{place} is not to be trusted, or does not trust us: {error}",
                    hint="another job's node or another program answers there, or the job's "
                    "certificates have expired; submit the job again",
                ) from error
        except (OSError, asyncio.TimeoutError) as error:
            trouble, distrusted_at_s = error, None
        said = _note(place, trouble, said)
        if loop.time() + pause_s > deadline:
            why = render_trouble(trouble)
            raise TimeoutError(f"{place} cannot be reached in {timeout_s:g} s: {why}") from trouble
        await asyncio.sleep(pause_s)
        pause_s = min(_LAST_PAUSE_S, pause_s * 1.5)


def _note(place: TlsPlace, trouble: Exception, said: str) -> str:
    """Log what is in the way when it is something else than before; what it is."""
    why = render_trouble(trouble)
    if why != said:
        logger.info("%s is not there yet: %s", place, why)
    return why


class _Distrust(Exception):
    """One side did not like the other's certificate. Trying again may help, but not for long."""


async def _try_tls(place: TlsPlace, hello: Hello, left_s: float, *, connect_s: float) -> Link:
    """One try, up to the welcome: only then has the other side looked at our certificate."""
    name = server_name(hello.job_id)
    timeout_s = min(_HELLO_TIMEOUT_S, left_s)
    link = Link()
    try:
        await dial(link, place, server_hostname=name, timeout_s=timeout_s, connect_s=connect_s)
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise ConnectionResetError("it hung up during the TLS handshake") from error
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
            raise _Distrust("it hung up when it had seen our certificate") from error
        raise
    return link

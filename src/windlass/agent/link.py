"""Links: framed messages between agents, and between a client and the lead.

On one machine a link is a Unix socket in a folder of mode 0700; between machines it is TCP with mutual TLS.
The first frame is a hello; who speaks another version or for another job, or is not who its
certificate says, is told so and hung up on. Knows frames, not what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any, overload

from windlass import names
from windlass.agent.refusals import Refusals, render_trouble
from windlass.agent.tcp import (
    SHUTDOWN_TIMEOUT_S,
    Introduced,
    Listener,
    TlsPlace,
    dial,
    render_address,
)
from windlass.agent.tls import read_role, server_name
from windlass.errors import ProtocolError
from windlass.wire.messages import (
    Frame,
    FrameDecoder,
    Header,
    check_hello,
    make_hello,
    refusal,
    render_frame,
    render_head,
)

logger = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 5.0  # from the first packet to the hello, a TLS handshake included
_READ_BYTES = 64 << 10
_LARGE_BYTES = 64 << 10
_RETRY_S = 0.02
_DRAIN_TIMEOUT_S = 60.0
_CLOSE_TIMEOUT_S = 1.0
# Between machines, tries come ever slower, and each is given ever more time: the first packet to a node
# whose rules are just being made is dropped, and TCP itself would wait a second before it sends another.
# Who is not trusted may be the last owner of an address.
_FIRST_PAUSE_S, _LAST_PAUSE_S = 0.05, 0.5
_DISTRUST_S = 5.0

Place = Path | TlsPlace


class Link:
    """One connection. `send` never blocks; a link that cannot be written to ends for its reader."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        max_body_bytes: int = names.MAX_BODY_BYTES,
    ) -> None:
        self._reader = reader
        self._writer = writer
        # a larger read is taken from the system and given back each time
        writer.transport.max_size = _READ_BYTES  # type: ignore[attr-defined]
        self._decoder = FrameDecoder(max_body_bytes=max_body_bytes)
        self._early: list[Frame] = []
        self._heard_s = 0.0
        self.is_silent = False  # it was hung up on because it said nothing
        self._draining = asyncio.Lock()  # Python 3.10 allows one drain at a time
        # asked at once: a transport that has been closed forgets them
        self.peer = render_address(writer.get_extra_info("peername"))
        self.certificate: dict[str, Any] | None = None  # on one machine
        if writer.get_extra_info("ssl_object") is not None:
            self.certificate = writer.get_extra_info("peercert") or {}

    def watch(self, limit_s: float) -> None:
        """Hang up on a peer that says nothing for so long; `is_silent` tells afterwards.

        One look in that time, rather than a timer for every frame.
        """
        loop = asyncio.get_running_loop()
        self._heard_s = loop.time()

        def look() -> None:
            left_s = self._heard_s + limit_s - loop.time()
            if self._writer.is_closing():
                return
            if left_s <= 0:
                self.is_silent = True
                self._writer.transport.abort()
            else:
                loop.call_later(left_s, look)

        loop.call_later(limit_s, look)

    def send(self, header: Header, body: bytes = b"") -> None:
        if self._writer.is_closing():
            return
        if len(body) < _LARGE_BYTES:
            self._writer.write(render_frame(header, body))
        else:
            self._writer.write(render_head(header, len(body)))
            self._writer.write(body)

    def send_all(self, frames: Iterable[tuple[Header, bytes]]) -> None:
        """Several small frames in one write."""
        if not self._writer.is_closing():
            self._writer.write(b"".join(render_frame(header, body) for header, body in frames))

    async def drain(self, *, timeout_s: float = _DRAIN_TIMEOUT_S) -> None:
        """Wait while more than a little is unsent. ConnectionError when the peer will never take it.

        Who drains after each piece has a few pieces in memory at most. (TLS may let one more go than
        the socket's own buffer asks for, so a single huge frame is not waited for.)
        """
        async with self._draining:
            try:
                await asyncio.wait_for(self._writer.drain(), timeout_s)
            except asyncio.TimeoutError as error:
                raise ConnectionAbortedError(
                    f"{self.peer} has taken nothing for {timeout_s:g} s"
                ) from error
            except ssl.SSLError as error:
                raise ConnectionAbortedError(f"{self.peer}: {render_trouble(error)}") from error

    async def frames(self) -> AsyncGenerator[Frame, None]:
        """Frames until the peer hangs up."""
        loop = asyncio.get_running_loop()
        data = b""  # what an earlier reader left in the decoder comes first
        while True:
            while self._early:
                yield self._early.pop(0)
            for frame in self._decoder.feed(data):
                yield frame
            try:
                data = await self._reader.read(_READ_BYTES)
            except ssl.SSLError as error:
                raise ProtocolError(f"{self.peer}: {render_trouble(error)}") from error
            except OSError:
                data = b""
            if not data:
                break
            self._heard_s = loop.time()
        if not self._decoder.is_between_frames:
            logger.warning("%s hung up in the middle of a frame", self.peer)

    async def first(self) -> Frame:
        """The first frame, which `frames` will give again."""
        frames = self.frames()
        try:
            frame = await frames.__anext__()
        except StopAsyncIteration:
            raise ConnectionResetError(f"{self.peer} hung up without a word") from None
        finally:
            await frames.aclose()
        self._early.append(frame)
        return frame

    def trust(self) -> None:
        """The peer has introduced itself: from now on it may send large bodies."""
        self._decoder.max_body_bytes = names.MAX_BODY_BYTES

    async def close(self) -> None:
        """Send what is still to be sent, then hang up."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), _CLOSE_TIMEOUT_S)
        self._writer.close()
        if self.certificate is not None:
            # TLS says goodbye and waits to hear it too, which a peer may never say
            with contextlib.suppress(OSError, asyncio.TimeoutError):
                await asyncio.wait_for(self._writer.wait_closed(), 2 * SHUTDOWN_TIMEOUT_S)
            self._writer.transport.abort()  # on Python 3.10 nothing else gives up


Handler = Callable[[Link, Header, AsyncIterator[Frame]], Awaitable[None]]


@overload
async def serve(place: Path, job_id: str, handler: Handler) -> asyncio.AbstractServer: ...
@overload
async def serve(place: TlsPlace, job_id: str, handler: Handler) -> Listener: ...
async def serve(place: Place, job_id: str, handler: Handler) -> asyncio.AbstractServer | Listener:
    """Take links at `place`; `handler` gets each one that has introduced itself properly."""
    refusals = Refusals()
    # a listener has one deadline for handshake and hello together
    timeout_s = None if isinstance(place, TlsPlace) else _HELLO_TIMEOUT_S

    async def greet(
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        introduced: Introduced = lambda: None,
    ) -> None:
        link = Link(reader, writer, max_body_bytes=0)
        frames = link.frames()
        try:
            hello = await _hear_hello(frames, timeout_s)
            if isinstance(hello, str):
                refusals.log(link.peer, hello)
                return
            check_hello(hello.header, job_id=job_id)
            _check_certificate(link, hello.header)
            introduced()
            link.trust()
            link.send({"type": "welcome"})
            await handler(link, hello.header, frames)
        except ProtocolError as error:
            refusals.log(link.peer, error.message)
            link.send({"type": "refused", "why": error.message, "hint": error.hint})
        except asyncio.CancelledError:
            pass
        finally:
            await link.close()

    if isinstance(place, TlsPlace):
        return Listener(place, greet, hello_timeout_s=_HELLO_TIMEOUT_S)
    return await asyncio.start_unix_server(greet, path=str(place))


async def _hear_hello(frames: AsyncIterator[Frame], timeout_s: float | None) -> Frame | str:
    """The first frame, or why there is none."""
    try:
        return await asyncio.wait_for(frames.__anext__(), timeout_s)
    except StopAsyncIteration:
        return "it hung up before its hello"
    except asyncio.TimeoutError:
        return f"no hello within {timeout_s:g} s"


def _check_certificate(link: Link, hello: Header) -> None:
    """Between machines nobody is believed: the certificate must say what the hello says."""
    if link.certificate is None:
        return
    job_id, role = read_role(link.certificate)
    if (job_id, role) != (hello["job_id"], hello["role"]):
        raise ProtocolError(
            f"the peer calls itself {hello['role']} of {hello['job_id']}, "
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
    also: Header | None = None,
) -> Link:
    """Reach the lead, which may not be there yet; `also` is what else the hello says.

    OSError when it never comes; ProtocolError when it is not ours, or does not want us.
    """
    hello = {**make_hello(role=role, job_id=job_id, node=node), **(also or {})}
    if isinstance(place, TlsPlace):
        return await _connect_tls(place, hello, timeout_s)
    return await _connect_unix(place, hello, timeout_s)


async def _connect_unix(path: Path, hello: Header, timeout_s: float) -> Link:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    while True:
        try:
            reader, writer = await asyncio.open_unix_connection(str(path))
            break
        except (FileNotFoundError, ConnectionRefusedError):
            # a lead that has ended takes its folder with it
            if loop.time() > deadline or not path.parent.exists():
                raise
            await asyncio.sleep(_RETRY_S)
    link = Link(reader, writer)
    link.send(hello)
    return link


async def _connect_tls(place: TlsPlace, hello: Header, timeout_s: float) -> Link:
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


async def _try_tls(place: TlsPlace, hello: Header, left_s: float, *, connect_s: float) -> Link:
    """One try, up to the welcome: only then has the other side looked at our certificate."""
    name = server_name(str(hello["job_id"]))
    timeout_s = min(_HELLO_TIMEOUT_S, left_s)
    try:
        reader, writer = await dial(
            place, server_hostname=name, timeout_s=timeout_s, connect_s=connect_s
        )
    except (ssl.SSLEOFError, ssl.SSLZeroReturnError) as error:
        raise ConnectionResetError("it hung up during the TLS handshake") from error
    except ssl.SSLError as error:
        raise _Distrust(render_trouble(error)) from error
    link = Link(reader, writer)
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


Send = Callable[[dict[str, Any]], None]

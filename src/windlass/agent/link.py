"""Links: framed messages between agents, and between a client and the lead.

On one machine a link is a Unix socket in a folder of mode 0700. The first frame is a hello; who speaks
another version, or for another job, is told so and hung up on. Knows frames, not what they mean.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from windlass.errors import ProtocolError
from windlass.wire.messages import (
    Frame,
    FrameDecoder,
    Header,
    check_hello,
    make_hello,
    render_frame,
)

logger = logging.getLogger(__name__)

_HELLO_TIMEOUT_S = 5.0
_READ_BYTES = 256 << 10
_RETRY_S = 0.02


class Link:
    """One connection. `send` never blocks; a link that cannot be written to ends for its reader."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._decoder = FrameDecoder()

    def send(self, header: Header, body: bytes = b"") -> None:
        if not self._writer.is_closing():
            self._writer.write(render_frame(header, body))

    async def frames(self) -> AsyncIterator[Frame]:
        """Frames until the peer hangs up."""
        while True:
            try:
                data = await self._reader.read(_READ_BYTES)
            except ConnectionError:
                return
            if not data:
                return
            for frame in self._decoder.feed(data):
                yield frame

    async def close(self) -> None:
        """Send what is still to be sent, then hang up."""
        with contextlib.suppress(ConnectionError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), timeout=1.0)
        self._writer.close()


Handler = Callable[[Link, Header, AsyncIterator[Frame]], Awaitable[None]]


async def serve(path: Path, job_id: str, handler: Handler) -> asyncio.AbstractServer:
    """Take links at `path`; `handler` gets each one that has introduced itself properly."""

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        frames = link.frames()
        try:
            hello = await asyncio.wait_for(frames.__anext__(), timeout=_HELLO_TIMEOUT_S)
            check_hello(hello.header, job_id=job_id)
            link.send({"type": "welcome"})
            await handler(link, hello.header, frames)
        except ProtocolError as error:
            logger.warning("refused a link: %s", error)
            link.send({"type": "refused", "why": error.message, "hint": error.hint})
        except (StopAsyncIteration, asyncio.TimeoutError):
            logger.warning("a link said nothing")
        except asyncio.CancelledError:
            pass
        finally:
            await link.close()

    return await asyncio.start_unix_server(accept, path=str(path))


async def connect(path: Path, *, role: str, job_id: str, node: int, timeout_s: float) -> Link:
    """Reach the lead, which may not be there yet."""
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
    link.send(make_hello(role=role, job_id=job_id, node=node))
    return link


Send = Callable[[dict[str, Any]], None]

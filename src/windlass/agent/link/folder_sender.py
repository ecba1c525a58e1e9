"""Sender that transfers new files of a folder over a link, for as long as the link exists.

There is one sender for each peer that wants files. `wire.file_sync` determines which files are new.
"""

from __future__ import annotations

import asyncio
import logging
import time

from windlass.agent.link.agent_link import Link
from windlass.wire.file_sync import Sender

logger = logging.getLogger(__name__)

_EVERY_S = 0.05


class FolderSender:
    """Background task that sends new files in rounds."""

    def __init__(self, link: Link, sender: Sender) -> None:
        self._link = link
        self._sender = sender
        self._turn = asyncio.Lock()
        self._is_closed = False
        self._logged: dict[str, str] = {}
        self.moved_s = time.monotonic()  # when something was last sent
        self._task = asyncio.ensure_future(self._run())

    async def _run(self) -> None:
        # a flag in addition to the cancellation, because Python 3.11 may lose that while a drain fails
        while not self._is_closed:
            await self.round()
            await asyncio.sleep(_EVERY_S)

    async def round(self) -> None:
        """Send all new data, no faster than the other side reads it."""
        async with self._turn:
            try:
                for piece in self._sender.pieces():
                    self._link.send(piece.message, piece.body)
                    await self._link.drain()
                    self.moved_s = time.monotonic()
            except ConnectionError:
                self._is_closed = True
            except OSError as error:
                logger.warning("files for %s: %s", self._link.peer, error)
            self._log_troubles()

    @property
    def troubles(self) -> dict[str, str]:
        """Files that cannot be read, with the reasons."""
        return self._sender.troubles

    def _log_troubles(self) -> None:
        """Log each problem once, because every round tries the file again."""
        for path, why in self.troubles.items() - self._logged.items():
            logger.warning("%s for %s: %s", path, self._link.peer, why)
        self._logged = dict(self.troubles)

    def close(self) -> None:
        self._is_closed = True
        self._task.cancel()

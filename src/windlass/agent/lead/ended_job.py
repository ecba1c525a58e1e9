"""Answers for a job that has ended, from what its lead left in the folder.

Clients read status, logs and results; nodes that come late are told that it is over. Nothing is started,
and nothing is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from windlass.agent.lead.lead_server import READER_SILENCE_S, beat
from windlass.agent.link.agent_link import Link
from windlass.agent.node.folder_sender import FolderSender
from windlass.errors import ProtocolError
from windlass.wire.file_sync import Sender, is_from_lead
from windlass.wire.frames import Frame
from windlass.wire.identity import NODE
from windlass.wire.job_folder import JobFolder
from windlass.wire.messages.jobs import (
    CLIENT_TO_LEAD,
    AllRead,
    CancelJob,
    EndAgent,
    Heard,
    HoldLease,
    InputsWanted,
)
from windlass.wire.messages.link import Heartbeat, Hello

_HEARD_IN_VAIN = (Heartbeat, HoldLease, AllRead)


class EndedJob:
    """Takes links as the lead's own server does."""

    def __init__(self, folder: JobFolder) -> None:
        self._folder = folder

    async def take(self, link: Link, hello: Hello, _frames: AsyncIterator[Frame]) -> None:
        """One peer, until it hangs up."""
        if hello.role == NODE:
            link.send(EndAgent())
            return
        link.send(InputsWanted(inputs=False))
        sender = FolderSender(link, Sender(self._folder, is_from_lead, has=hello.has or {}))
        heart = asyncio.ensure_future(beat(link))
        link.watch(READER_SILENCE_S)
        try:
            await link.listen(lambda frame: self._take(link, frame))
        finally:
            heart.cancel()
            sender.close()

    def _take(self, link: Link, frame: Frame) -> None:
        is_known = frame.type in CLIENT_TO_LEAD.kinds
        message = CLIENT_TO_LEAD.read(frame.header) if is_known else None
        if isinstance(message, CancelJob):  # there is nothing left to end
            link.send(Heard())
        elif not isinstance(message, _HEARD_IN_VAIN):
            raise ProtocolError("the job has ended", hint="its status, logs and results are kept")

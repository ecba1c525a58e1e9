"""End of a job in a pod's agent: the last word, the exit code, and the wait for the pod's removal.

If containers are restarted whenever they exit, a pod must stay up after its job has ended, until the object
that created it is removed. During that time the lead answers clients, for as long as the job is kept. Other
pods only wait for SIGTERM.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.agent.agent_process import LeadAgent
from windlass.agent.lead.lead_server import EndedJob
from windlass.agent.link import endpoints
from windlass.agent.link.tcp import TlsPlace
from windlass.agent.pod_folder import mark_end
from windlass.agent.pod_output import PodLogWriter, write_last_word
from windlass.errors import EngineError
from windlass.wire.job_folder import JobFolder
from windlass.wire.tls import server_context

if TYPE_CHECKING:
    from windlass.agent.agent_process import Agent
    from windlass.agent.link.tcp import Listener

logger = logging.getLogger(__name__)

_SEEN_S = 6.0  # kubelets report a pod's end within two seconds, or later if they are busy


class PodEnd:
    """Last actions of an agent in a pod after its job has ended."""

    def __init__(self, plan: dict[str, Any], folder: JobFolder, log: PodLogWriter) -> None:
        self._plan = plan
        self._folder = folder
        self._log = log
        self._stays_up = os.environ.get(names.ENV_STAYS_UP) == "1"

    async def finish(self, agent: Agent, code: int) -> int:
        """Write the lead's last word, and stay if the pod must. Return the exit code of the process."""
        is_lead = isinstance(agent, LeadAgent)
        if isinstance(agent, LeadAgent) and agent.has_ended:
            write_last_word(agent.status_writer.status, self._folder, self._log)
        if code == 0 and not agent.stop_requested.is_set():
            await self.stay(is_lead=is_lead)
        reports = os.environ.get(names.ENV_TELLS_FAILURE, "")
        by_lead = reports == names.TELLS_BY_LEAD
        if code or not agent.has_failed or not (reports == "1" or (by_lead and is_lead)):
            return code
        if by_lead and len(self._plan["nodes"]) > 1:
            # pods whose end has not been observed yet are deleted together with the output of their ranks
            await asyncio.sleep(_SEEN_S)
        return names.EXIT_FAILED_WORK

    async def stay(self, *, is_lead: bool) -> int:
        """Wait for SIGTERM if containers are restarted whenever they exit. Return the exit code."""
        if not self._stays_up:
            return 0
        self._log.flush()
        ended_at_s = mark_end(self._folder)
        stop_requested = asyncio.Event()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop_requested.set)
        logger.info("the job has ended: this pod stays until it is removed")
        server = await self._serve() if is_lead else None
        if server is not None:
            ttl_s = (self._plan["pod"] or {}).get("ttl_s")
            left_s = None if ttl_s is None else max(0.0, ended_at_s + ttl_s - time.time())
            try:
                await asyncio.wait_for(stop_requested.wait(), left_s)
            except asyncio.TimeoutError:
                logger.info("the job was kept for %g s: no longer answering clients", ttl_s)
            server.close()
        await stop_requested.wait()
        return 0

    async def _serve(self) -> Listener | None:
        try:
            take = EndedJob(self._folder).take
            return await endpoints.serve(make_listening_place(), self._plan["job_id"], take)
        except EngineError as error:  # the pod's log has the last word, too
            logger.warning("cannot answer clients: %s", error)
            return None


def make_listening_place() -> TlsPlace:
    """Return where the lead of a pod listens."""
    context = server_context(Path(names.SECRET_FOLDER))
    return TlsPlace(host="", port=names.AGENT_PORT, context=context)

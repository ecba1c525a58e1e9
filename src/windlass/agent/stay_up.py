"""A pod whose job has ended, of a kind that starts its containers again whenever they exit: it stays.

Whoever made the object removes it. Until then the lead answers clients, for as long as the job is kept;
every other pod waits for SIGTERM and does nothing.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from typing import TYPE_CHECKING

from windlass.agent.lead.lead_server import EndedJob
from windlass.agent.link import endpoints
from windlass.errors import EngineError
from windlass.wire.job_folder import JobFolder

if TYPE_CHECKING:
    from windlass.agent.link.tcp import Listener, TlsPlace

logger = logging.getLogger(__name__)


async def stay_up(
    folder: JobFolder,
    job_id: str,
    *,
    lead: TlsPlace | None,
    ended_at_s: float,
    ttl_s: float | None,
) -> None:
    """Stay until SIGTERM. `lead` is where node 0 listens, None on other nodes; `ttl_s` None: for ever."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    logger.info("the job has ended: this pod stays until it is removed")
    server = await _serve(folder, job_id, lead) if lead is not None else None
    if server is not None:
        left_s = None if ttl_s is None else max(0.0, ended_at_s + ttl_s - time.time())
        try:
            await asyncio.wait_for(told.wait(), left_s)
        except asyncio.TimeoutError:
            logger.info("the job has been kept for %g s: clients are not answered any more", ttl_s)
        server.close()
    await told.wait()


async def _serve(folder: JobFolder, job_id: str, lead: TlsPlace) -> Listener | None:
    try:
        return await endpoints.serve(lead, job_id, EndedJob(folder).take)
    except EngineError as error:  # what the job left is in the pod's log, too
        logger.warning("clients are not answered: %s", error)
        return None

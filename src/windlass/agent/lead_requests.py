"""Requests to a lead from an agent without a link to it: ask for an index, or report the agent's end.

An agent without an index gets one from the lead, or waits as a spare until one is free. A node that receives
SIGTERM after it lost its lead reports its end to the next lead, which may be waiting for that node.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from windlass.agent.agent_context import AgentContext
from windlass.agent.link import endpoints
from windlass.errors import ProtocolError
from windlass.wire.identity import NODE
from windlass.wire.lead_handover import AgentIdentity, LeadHandover
from windlass.wire.message import Message
from windlass.wire.messages.jobs import LEAD_TO_NODE, EndAgent
from windlass.wire.messages.link import GiveIndex

logger = logging.getLogger(__name__)

_AGAIN_S = 1.0
_ANSWER_S = 10.0
_REPORT_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenIndex:
    """Index of a node, and the lead that assigned it."""

    index: int
    lead: str


async def ask_index(
    place: endpoints.Place, job_id: str, agent: str, *, timeout_s: float
) -> GivenIndex | None:
    """Ask the lead at `place` for the index of `agent`. Return None if the job has ended.

    Raise OSError if no lead can be reached for `timeout_s`.
    """
    lead = ""
    while True:
        try:
            answer = await _ask(place, job_id, agent, lead, timeout_s)
            if isinstance(answer, EndAgent):
                return None
            if isinstance(answer, GiveIndex):
                lead = answer.lead
                if answer.index is not None:
                    return GivenIndex(index=answer.index, lead=lead)
                logger.info("there are enough nodes: waiting until one is lost")
        except ProtocolError as error:
            logger.warning("%s", error)
        except asyncio.TimeoutError:
            logger.warning("the lead has not answered with an index")
        await asyncio.sleep(_AGAIN_S)


async def _ask(
    place: endpoints.Place, job_id: str, agent: str, lead: str, timeout_s: float
) -> Message | None:
    also = {"asks_index": agent, "last_lead": lead}
    link = await endpoints.connect(
        place, role=NODE, job_id=job_id, node=None, timeout_s=timeout_s, also=also
    )
    frames = link.frames()
    try:
        return await asyncio.wait_for(_read_answer(frames), _ANSWER_S)
    finally:
        await frames.aclose()
        await link.close()


async def _read_answer(frames: endpoints.Frames) -> Message | None:
    async for frame in frames:
        message = LEAD_TO_NODE.read(frame.header)
        if isinstance(message, (GiveIndex, EndAgent)):
            return message
    return None


async def report_end(
    context: AgentContext, place: endpoints.Place, memory: LeadHandover | None
) -> None:
    """Notify the lead at `place`, if there is one, that this node is exiting permanently.

    The report includes the lead state that the node keeps, because the node may have taken part in a newer
    attempt than the lead knows of. The other nodes of that attempt continue without this one.
    """
    seat = AgentIdentity(index=context.index, incarnation=context.incarnation)
    with contextlib.suppress(OSError, ProtocolError):
        link = await endpoints.connect(
            place,
            role="node",
            job_id=context.plan.job_id,
            node=context.index,
            timeout_s=_REPORT_S,
            also={"farewell": seat, "memory": memory},
        )
        await link.close()

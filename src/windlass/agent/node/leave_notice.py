"""The last word of a node that is told to stop and has no lead: that it ends for good, and has no ranks.

Another lead may be waiting for it, since nobody else can tell that it does not go on beyond a cut.
"""

from __future__ import annotations

import contextlib

from windlass.agent.agent_context import AgentContext
from windlass.agent.link import endpoints
from windlass.errors import ProtocolError
from windlass.wire.lead_handover import LeadHandover, Seat

_PATIENCE_S = 3.0


async def say_farewell(
    context: AgentContext, place: endpoints.Place, memory: LeadHandover | None
) -> None:
    """Tell the lead that there is at `place`, if there is one.

    With what the node remembers: it may have taken part in a later attempt than that lead knows of, whose
    other nodes go on without it.
    """
    seat = Seat(index=context.index, incarnation=context.incarnation)
    with contextlib.suppress(OSError, ProtocolError):
        link = await endpoints.connect(
            place,
            role="node",
            job_id=context.plan.job_id,
            node=context.index,
            timeout_s=_PATIENCE_S,
            also={"farewell": seat, "memory": memory},
        )
        await link.close()

"""Who works on node 0 of a compute: its lead, its node, and the desk where clients ask."""

from __future__ import annotations

from windlass.agent.board import Board
from windlass.agent.forks import ForkServer
from windlass.agent.node import Echo
from windlass.agent.station import Station
from windlass.agent.warm.desk import Desk
from windlass.agent.warm.lead import WarmLead
from windlass.agent.warm.node import SendBody, WarmNode


def make_staff(
    station: Station, forks: ForkServer, board: Board, hear: SendBody, echo: Echo | None
) -> tuple[WarmLead, WarmNode, Desk]:
    """Lead, node and desk of one compute."""
    node = WarmNode(station, forks=forks, send=hear, echo=echo)
    lead = WarmLead(station.plan, board, address=station.address, sight=station.sight)
    lead.projects = node.projects
    lead.keeps_logs = station.is_pod
    return lead, node, Desk(station, lead, node)

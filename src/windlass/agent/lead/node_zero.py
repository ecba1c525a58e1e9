"""Who works on node 0 of a compute: its lead, its node, and the desk where clients ask."""

from __future__ import annotations

from windlass.agent.agent_context import Station
from windlass.agent.lead.call_lead import WarmLead
from windlass.agent.lead.call_server import Desk
from windlass.agent.lead.status_writer import Board
from windlass.agent.node.call_node import SendBody, WarmNode
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.job_node import Echo


def make_staff(
    station: Station, forks: ForkServer, board: Board, hear: SendBody, echo: Echo | None
) -> tuple[WarmLead, WarmNode, Desk]:
    """Lead, node and desk of one compute."""
    node = WarmNode(station, forks=forks, send=hear, echo=echo)
    lead = WarmLead(station.plan, board, address=station.address, sight=station.sight)
    lead.projects = node.projects
    lead.keeps_logs = station.is_pod
    return lead, node, Desk(station, lead, node)

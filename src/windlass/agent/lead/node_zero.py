"""Who works on node 0 of a compute: its lead, its node, and the desk where clients ask."""

from __future__ import annotations

from windlass.agent.agent_context import AgentContext
from windlass.agent.lead.call_lead import CallLead
from windlass.agent.lead.call_server import CallServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.node.call_node import CallNode, SendBody
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.job_node import Echo


def make_staff(
    station: AgentContext, forks: ForkServer, board: StatusWriter, hear: SendBody, echo: Echo | None
) -> tuple[CallLead, CallNode, CallServer]:
    """Lead, node and desk of one compute."""
    node = CallNode(station, forks=forks, send=hear, echo=echo)
    lead = CallLead(station.plan, board, address=station.address, sight=station.sight)
    lead.projects = node.projects
    lead.keeps_logs = station.is_pod
    return lead, node, CallServer(station, lead, node)

"""What runs on node 0 of a compute: its lead, its node, and the server of its clients."""

from __future__ import annotations

from windlass.agent.agent_context import AgentContext
from windlass.agent.lead.call_lead import CallLead
from windlass.agent.lead.call_server import CallServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.node.call_node import CallNode, SendBody
from windlass.agent.node.forkserver_client import ForkServer
from windlass.agent.node.job_node import Echo


def make_staff(
    context: AgentContext,
    forks: ForkServer,
    status_writer: StatusWriter,
    hear: SendBody,
    echo: Echo | None,
) -> tuple[CallLead, CallNode, CallServer]:
    """Lead, node and call server of one compute."""
    node = CallNode(context, forks=forks, send=hear, echo=echo)
    lead = CallLead(context.plan, status_writer, address=context.address, sight=context.sight)
    lead.projects = node.projects
    lead.keeps_logs = context.is_pod
    return lead, node, CallServer(context, lead, node)

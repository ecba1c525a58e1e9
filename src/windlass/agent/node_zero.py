"""What runs on node 0 of a compute: its lead, its node, and the server of its clients."""

from __future__ import annotations

from windlass.agent.agent_context import AgentContext
from windlass.agent.fork_server_client import ForkServer
from windlass.agent.lead.calls.call_lead import CallLead
from windlass.agent.lead.calls.call_server import CallServer
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.node.compute_orders import ComputeOrders
from windlass.agent.node.node import Node
from windlass.agent.node.world_ranks import Echo, Tell


def make_staff(
    context: AgentContext,
    forks: ForkServer,
    status_writer: StatusWriter,
    hear: Tell,
    echo: Echo | None,
) -> tuple[CallLead, Node, CallServer]:
    """Lead, node and call server of one compute."""
    node = Node(context, forks=forks, send=hear)
    orders = ComputeOrders(node, echo=echo)
    lead = CallLead(
        context.plan,
        status_writer,
        address=context.address,
        incarnation=context.incarnation,
        sight=context.sight,
        projects=orders.projects,
        keeps_logs=context.is_pod,
    )
    return lead, node, CallServer(context, lead, orders.projects, orders.spill)

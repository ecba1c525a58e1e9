"""Messages from a client to an agent on its own machine: one line of JSON over a socket pair."""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class StartNode(Message, kind="start_node"):
    """Run as this node of a plan.

    The lead's order carries the descriptor of the lock that the lead holds until it exits.
    """

    node: Count
    plan: str  # the plan's path
    run_dir: str  # folder for sockets
    log: str  # file for the agent's own output
    hidden: Mapping[str, str]  # variables that are never written to disk


CLIENT_TO_AGENT = Direction(
    "client", "agent", "The first order to an agent of the local engine.", StartNode
)

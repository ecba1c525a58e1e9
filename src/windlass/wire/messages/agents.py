"""What a client says to an agent that it started on its own machine: one line of JSON over a socket pair."""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping


class StartNode(Message, kind="start_node"):
    """Be this node of that plan; with the lead's comes the descriptor of the lock that it holds for life."""

    node: Count
    plan: str  # its path
    run_dir: str  # for sockets
    log: str  # where the agent's own output goes
    hidden: Mapping[str, str]  # variables that are on no disk


CLIENT_TO_AGENT = Direction(
    "client", "agent", "The first order of an agent of the local engine.", StartNode
)

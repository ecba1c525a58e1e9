"""Messages on every connection to a lead: the handshake, heartbeats and files.

The first frame is a hello. The lead answers with a welcome or a refusal.
"""

from __future__ import annotations

from windlass.wire.message import Count, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.wire.lead_handover import AgentIdentity, LeadHandover


class Hello(Message, kind="hello"):
    """The first frame: the sender's identity and its protocol version."""

    version: Count
    role: str
    job_id: str
    node: Count | None = None
    lease: bool = False  # a client that holds the job's lease
    has: Mapping[str, Count] | None = None  # if a client requests files: bytes that it has of each
    farewell: AgentIdentity | None = None  # if a node without a lead exits permanently
    memory: LeadHandover | None = None  # the lead's state that this node kept
    asks_index: str = ""  # identity of an agent that has no index yet
    agent: str = ""  # identity of an agent that received its index from a lead
    last_lead: str = ""  # the lead that assigned the index, or the last known one


class Welcome(Message, kind="welcome"):
    """The lead accepted the hello."""


class Refused(Message, kind="refused"):
    """The hello was rejected, and the connection is closed."""

    why: str = "refused"
    hint: str = ""


class GiveIndex(Message, kind="index"):
    """The index assigned to an agent, or None if none is free now."""

    index: Count | None
    lead: str


class Heartbeat(Message, kind="heartbeat"):
    """The sender is alive."""


class FilePiece(Message, kind="piece"):
    """A section of a file, in the body."""

    path: str
    offset: Count
    total_bytes: Count | None = None  # set if the file must appear only when complete

"""What is said on every link to a lead, whoever is at its other end: how it begins, that it lives, files.

The first frame is a hello, the answer to it a welcome or a refusal.
"""

from __future__ import annotations

from windlass.wire.message import Count, Message

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

    from windlass.wire.lead_handover import LeadHandover, Seat


class Hello(Message, kind="hello"):
    """The first frame: who is there, and which protocol is spoken."""

    version: Count
    role: str
    job_id: str
    node: Count | None = None
    lease: bool = False  # a client that holds the job's lease
    has: Mapping[str, Count] | None = None  # a client that wants files: how much it has of each
    farewell: Seat | None = None  # a node that ends for good, and has no lead
    memory: LeadHandover | None = None  # what that node knows
    asks_index: str = ""  # an agent that has no index of its own: which one it is
    agent: str = ""  # the same of one that was given its index
    last_lead: str = ""  # the lead that gave it, or that it knew last


class Welcome(Message, kind="welcome"):
    """The hello was a good one."""


class Refused(Message, kind="refused"):
    """Why the other side hangs up."""

    why: str = "refused"
    hint: str = ""


class GiveIndex(Message, kind="index"):
    """The index of an agent that has none of its own; None: there is none for it now."""

    index: Count | None
    lead: str


class Heartbeat(Message, kind="heartbeat"):
    """Whoever says it is alive."""


class FilePiece(Message, kind="piece"):
    """A stretch of a file, in the body; of a file that appears whole, how long that will be."""

    path: str
    offset: Count
    total_bytes: Count | None = None

"""Messages between a job's lead and its nodes, and between the lead and the job's clients.

Node 0 and the lead share a process and pass the same messages in memory.
"""

from __future__ import annotations

from windlass.wire.message import Count, Direction, Message, Port
from windlass.wire.messages.link import (
    FilePiece,
    GiveIndex,
    Heartbeat,
    Hello,
    Refused,
    Welcome,
)
from windlass.wire.messages.ranks import RankDone, RankReport, RankRunning
from windlass.wire.messages.worlds import (
    CloseStore,
    EndWorld,
    OpenStore,
    RankEnded,
    StoreGone,
    StoreReady,
    WorldCleared,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from windlass.wire.lead_handover import LeadHandover, LostLead

# -- orders of the lead ------------------------------------------------------------------------


class StartAttempt(Message, kind="start"):
    """Start the ranks of an attempt on these nodes, with this rendezvous address."""

    attempt: Count
    nodes: Sequence[Count]
    address: str
    port: Port
    has_store: bool  # torch's store is open at this address
    secret: str = ""  # admits ranks to the store
    members: Sequence[str] = ()  # addresses of a cluster's nodes


class ReleaseRanks(Message, kind="release"):
    """Let ranks that wait for their peers exit, because all ranks are done."""


class KeepHandover(Message, kind="remember"):
    """Keep the lead's state for a possible successor."""

    memory: LeadHandover


class FlushFiles(Message, kind="flush"):
    """Send the files of ranks, and report when all are sent."""


class EndAgent(Message, kind="end"):
    """Exit, because the job has ended or continues without this node."""

    has_failed: bool = False


class FilesHere(Message, kind="has"):
    """The number of bytes that the lead has of each file from ranks."""

    files: Mapping[str, Count]


# -- reports of nodes --------------------------------------------------------------------------


class JoinLead(Message, kind="join"):
    """A node joins, with the state it kept of the previous lead."""

    pid: Count
    python: str
    host: str = ""  # the node's machine, if that has its own name
    pod: str = ""  # the pod's name, if the node is a pod
    address: str = ""
    is_prepared: bool = True  # it has the code and the payload
    has: Mapping[str, Count] | None = None  # bytes that it has of the job's inputs
    memory: LeadHandover | None = None
    incarnation: str = ""  # identifies this agent among those of its index
    lost_lead: LostLead | None = None


class InputsReady(Message, kind="prepared"):
    """The node now has the code and the payload."""


class NodeLeaving(Message, kind="leaving"):
    """The node received a request to stop and ends its ranks."""

    why: str = ""


class RankStarted(Message, kind="started"):
    """A rank's process has started."""

    rank: Count
    pid: Count


class ImportsReady(Message, kind="ready"):
    """The fork server has finished its imports.

    If `culprit` is set, that module started threads, so ranks are spawned instead of forked.
    """

    is_complete: bool
    missing: Mapping[str, str]
    culprit: str
    num_threads: Count


class FilesFlushed(Message, kind="flushed"):
    """All files of the ranks were sent."""


class NodeTrouble(Message, kind="trouble"):
    """A problem to show in the job's conditions."""

    reason: str
    message: str


# -- clients -----------------------------------------------------------------------------------


class HoldLease(Message, kind="lease"):
    """Take or release the job's lease."""

    held: bool


class CancelJob(Message, kind="cancel"):
    """End the job. With `interrupt`, ranks receive it as Ctrl-C."""

    now: bool = False
    why: str = ""
    interrupt: bool = False


class AllRead(Message, kind="read_all"):
    """The client has read the final status and all files that it lists."""


class InputsRequest(Message, kind="wants"):
    """Request the code and the payload from the client, or decline them."""

    inputs: bool


class Acknowledged(Message, kind="ok"):
    """The lead received an order."""

    id: str = ""  # the call that the order was about, if any


# -- directions --------------------------------------------------------------------------------

LEAD_TO_NODE = Direction(
    "lead",
    "node",
    "Orders from a job's lead to the agents of its other nodes.",
    *(Welcome, Refused, Heartbeat, FilePiece, GiveIndex),
    *(StartAttempt, OpenStore, CloseStore, ReleaseRanks, EndWorld, KeepHandover),
    *(FlushFiles, EndAgent, FilesHere),
)
NODE_TO_LEAD = Direction(
    "node",
    "lead",
    "Reports from the agents of a job's nodes to its lead.",
    *(Hello, Heartbeat, FilePiece),
    *(JoinLead, InputsReady, NodeLeaving, WorldCleared),
    *(RankStarted, RankRunning, RankDone, RankEnded, RankReport),
    *(ImportsReady, StoreReady, StoreGone, FilesFlushed, NodeTrouble),
)
CLIENT_TO_LEAD = Direction(
    "client",
    "lead",
    "Requests from a job's clients to its lead.",
    *(Hello, Heartbeat, FilePiece, HoldLease, CancelJob, AllRead),
)
LEAD_TO_CLIENT = Direction(
    "lead",
    "client",
    "Answers from a job's lead to its clients.",
    *(Welcome, Refused, Heartbeat, FilePiece, InputsRequest, Acknowledged),
)

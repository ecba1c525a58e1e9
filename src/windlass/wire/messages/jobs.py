"""What the nodes of a job and their lead say to each other, and a job's clients and the lead.

Node 0 and the lead are one process, which says the same without a wire.
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
    """Start the ranks of an attempt, on these nodes; they meet at this address."""

    attempt: Count
    nodes: Sequence[Count]
    address: str
    port: Port
    has_store: bool  # torch's store is open there
    secret: str = ""  # that lets ranks in
    members: Sequence[str] = ()  # addresses of a cluster's nodes


class ReleaseRanks(Message, kind="release"):
    """All ranks are done: those that wait for their peers may end."""


class KeepHandover(Message, kind="remember"):
    """Keep what the lead knows, for the one that may come after it."""

    memory: LeadHandover


class FlushFiles(Message, kind="flush"):
    """Send what ranks left, and say when all of it was sent."""


class EndAgent(Message, kind="end"):
    """The job has ended, or goes on without this node."""

    has_failed: bool = False


class FilesHere(Message, kind="has"):
    """How much the lead has of the files that ranks left."""

    files: Mapping[str, Count]


# -- what nodes tell ---------------------------------------------------------------------------


class JoinLead(Message, kind="join"):
    """A node is there, with what it knows of the lead before this one."""

    pid: Count
    python: str
    host: str = ""  # the machine it is on, where that has a name of its own
    pod: str = ""  # its name, where it is one
    address: str = ""
    is_prepared: bool = True  # it has the code and the payload
    has: Mapping[str, Count] | None = None  # of the job's inputs
    memory: LeadHandover | None = None
    incarnation: str = ""  # which agent of its index it is
    lost_lead: LostLead | None = None


class InputsReady(Message, kind="prepared"):
    """The node has the code and the payload now."""


class NodeLeaving(Message, kind="leaving"):
    """The node was told to stop; its ranks end."""

    why: str = ""


class RankStarted(Message, kind="started"):
    """A rank's process is there."""

    rank: Count
    pid: Count


class ImportsReady(Message, kind="ready"):
    """The fork server has imported all it can; `culprit` started threads, so that ranks are spawned."""

    is_complete: bool
    missing: Mapping[str, str]
    culprit: str
    num_threads: Count


class FilesFlushed(Message, kind="flushed"):
    """All that ranks left was sent."""


class NodeTrouble(Message, kind="trouble"):
    """Something that the job's conditions should say."""

    reason: str
    message: str


# -- clients -----------------------------------------------------------------------------------


class HoldLease(Message, kind="lease"):
    """The client holds the job's lease from now on, or no longer."""

    held: bool


class CancelJob(Message, kind="cancel"):
    """End the job; `interrupt`: ranks hear it as Ctrl-C."""

    now: bool = False
    why: str = ""
    interrupt: bool = False


class AllRead(Message, kind="read_all"):
    """The client has a final status, and so all it speaks of."""


class InputsWanted(Message, kind="wants"):
    """Whether the client should send the code and the payload."""

    inputs: bool


class Heard(Message, kind="ok"):
    """An order was heard; of which call, if it was about one."""

    id: str = ""


# -- who says what -----------------------------------------------------------------------------

LEAD_TO_NODE = Direction(
    "lead",
    "node",
    "Orders of a job's lead to the agents of its other nodes.",
    *(Welcome, Refused, Heartbeat, FilePiece, GiveIndex),
    *(StartAttempt, OpenStore, CloseStore, ReleaseRanks, EndWorld, KeepHandover),
    *(FlushFiles, EndAgent, FilesHere),
)
NODE_TO_LEAD = Direction(
    "node",
    "lead",
    "What the agents of a job's nodes tell its lead.",
    *(Hello, Heartbeat, FilePiece),
    *(JoinLead, InputsReady, NodeLeaving, WorldCleared),
    *(RankStarted, RankRunning, RankDone, RankEnded, RankReport),
    *(ImportsReady, StoreReady, StoreGone, FilesFlushed, NodeTrouble),
)
CLIENT_TO_LEAD = Direction(
    "client",
    "lead",
    "What a job's clients say to its lead.",
    *(Hello, Heartbeat, FilePiece, HoldLease, CancelJob, AllRead),
)
LEAD_TO_CLIENT = Direction(
    "lead",
    "client",
    "What a job's lead tells its clients.",
    *(Welcome, Refused, Heartbeat, FilePiece, InputsWanted, Heard),
)

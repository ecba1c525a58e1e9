"""What the nodes of a compute and their lead say to each other, and a node and its ranks that take calls.

A node hands calls on to its ranks as they come; what ranks answer, it hands to the lead with their numbers.
"""

from __future__ import annotations

from windlass import names
from windlass.wire.message import Count, Direction, Message
from windlass.wire.messages.forkserver import CallRankSetup
from windlass.wire.messages.jobs import EndAgent, ImportsReady, JoinLead, NodeLeaving, NodeTrouble
from windlass.wire.messages.link import GiveIndex, Heartbeat, Hello, Refused, Welcome
from windlass.wire.messages.ranks import RankReport
from windlass.wire.messages.worlds import (
    CloseStore,
    EndWorld,
    OpenStore,
    RankEnded,
    StoreGone,
    StoreReady,
    WorldCleared,
)
from windlass.wire.states import RankState

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from windlass.plan.plan import NodePlan
    from windlass.spec.work import ImageStep
    from windlass.wire.results import ErrorInfo

# -- payloads and code, from clients, too ------------------------------------------------------


class PayloadPart(Message, kind=names.PART_FRAME):
    """A part of a large payload, in the body; parts come in order, before what they belong to."""

    payload: str


class SyncCode(Message, kind="sync"):
    """Files of a project, as an archive in the body, that bring it from one digest to another."""

    project: str
    base: str
    digest: str


class MakeObject(Message, kind="make"):
    """What makes the object of a kept world: a class and its arguments, in the body."""

    sizes: Sequence[Count]
    world: Count = 0


# -- orders of the lead ------------------------------------------------------------------------


class RunCall(Message, kind="call"):
    """Run a call on the ranks of a world; what is called is in the body, or in a file."""

    id: str
    world: Count
    name: str
    method: str
    sizes: Sequence[Count]
    collect: str
    stream: bool
    reload: bool  # the project has changed since the last call
    is_watched: bool
    sources: Mapping[str, str]  # for tracebacks
    meeting: Mapping[str, str]  # variables that say where ranks find each other
    part: Count  # of the store, for this call alone
    file: str = ""
    payload: str = ""  # the key of parts that came before
    is_ours: bool = False  # the file is the node's to remove


class SendMore(Message, kind="more"):
    """The readers of a stream have caught up."""

    world: Count


class ForkWorld(Message, kind="fork_world"):
    """Fork the ranks of a world; they wait for calls."""

    world: Count
    nodes: Sequence[NodePlan]
    preload: Sequence[str]
    env: Mapping[str, str]
    about: CallRankSetup


class SetUpNode(Message, kind="setup"):
    """Run the image's steps that were not run yet, with these variables; None takes one away."""

    env: Mapping[str, str | None]
    steps: Sequence[ImageStep]
    hidden: Mapping[str, str]  # values of secrets
    digest: str
    cwd: str = ""


# -- what nodes tell ---------------------------------------------------------------------------


class CallAnswer(Message, kind="answer"):
    """How a rank ended its part of a call; the value or the exception is in the body, or in a file."""

    call: str = ""
    rank: Count = 0  # said by its node
    state: RankState = RankState.RETURNED
    sizes: Sequence[Count] = ()
    at_s: float = 0.0
    error: ErrorInfo | None = None
    exit_code: int | None = None
    file: str = ""
    payload: str = ""
    is_ours: bool = False


class CallItem(Message, kind="item"):
    """What a generator of rank 0 yields."""

    call: str
    rank: Count = 0
    sizes: Sequence[Count] = ()
    at_s: float = 0.0
    waits: bool = False  # until it is told to send more
    file: str = ""
    payload: str = ""
    is_ours: bool = False


class RankPrinted(Message, kind="log"):
    """Records of a rank's log, in the body; of a framework's own processes where its number is negative."""

    world: Count
    rank: int
    call: str


class WorldAbsent(Message, kind="absent"):
    """A call came for ranks that are not here any more."""

    world: Count


class CodeSynced(Message, kind="synced"):
    """A project is at a digest; or why not."""

    project: str
    digest: str
    error: str = ""


class SettingUp(Message, kind="setting_up"):
    """A line of what the steps say."""

    line: str


class NodeSetUp(Message, kind="set_up"):
    """The set-up is done; or why not."""

    digest: str
    error: str = ""
    hint: str = ""


# -- who says what -----------------------------------------------------------------------------

LEAD_TO_COMPUTE_NODE = Direction(
    "lead",
    "compute's node",
    "Orders of a compute's lead to the agents of its nodes.",
    *(Welcome, Refused, Heartbeat, GiveIndex, EndAgent, PayloadPart, SyncCode, SetUpNode),
    *(ForkWorld, MakeObject, RunCall, SendMore, EndWorld, OpenStore, CloseStore),
)
COMPUTE_NODE_TO_LEAD = Direction(
    "compute's node",
    "lead",
    "What the agents of a compute's nodes tell its lead.",
    *(Hello, Heartbeat, JoinLead, NodeLeaving, PayloadPart, CodeSynced, SettingUp, NodeSetUp),
    *(ImportsReady, RankReport, NodeTrouble, CallAnswer, CallItem, RankPrinted),
    *(RankEnded, WorldAbsent, WorldCleared, StoreReady, StoreGone),
)
NODE_TO_RANK = Direction(
    "node",
    "rank that takes calls",
    "What a rank that takes calls is told, over the socket pair it was forked with.",
    *(MakeObject, RunCall, SendMore),
)
CALL_RANK_TO_NODE = Direction(
    "rank that takes calls",
    "node",
    "What such a rank answers.",
    *(CallAnswer, CallItem),
)

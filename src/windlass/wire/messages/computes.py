"""Messages between a compute's lead and its nodes, and between a node and the ranks that take calls.

A node forwards calls to its ranks unchanged. It adds the rank's number to each answer and forwards it to
the lead.
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

# -- payloads and code, also from clients ------------------------------------------------------


class PayloadPart(Message, kind=names.PART_FRAME):
    """A part of a large payload, in the body. Parts arrive in order, before their message."""

    payload: str


class SyncCode(Message, kind="sync"):
    """An archive in the body that updates a project from one digest to another."""

    project: str
    base: str
    digest: str


class MakeObject(Message, kind="make"):
    """Create the object of a kept world. The body holds its class and arguments."""

    sizes: Sequence[Count]
    world: Count = 0


# -- orders of the lead ------------------------------------------------------------------------


class RunCall(Message, kind="call"):
    """Run a call on the ranks of a world. The payload is in the body or in a file."""

    id: str
    world: Count
    name: str
    method: str
    sizes: Sequence[Count]
    collect: str
    stream: bool
    reload: bool  # the project has changed since the last call
    is_watched: bool
    sources: Mapping[str, str]  # source text for tracebacks
    meeting: Mapping[str, str]  # rendezvous variables
    part: Count  # part of the store that only this call uses
    file: str = ""
    payload: str = ""  # the key of parts sent earlier
    is_ours: bool = False  # the node removes the file


class SendMore(Message, kind="more"):
    """Send more items of a stream, because its readers have caught up."""

    world: Count


class ForkWorld(Message, kind="fork_world"):
    """Fork the ranks of a world. They then wait for calls."""

    world: Count
    nodes: Sequence[NodePlan]
    preload: Sequence[str]
    env: Mapping[str, str]
    about: CallRankSetup


class SetUpNode(Message, kind="setup"):
    """Run the image's pending steps with these variables. A value of None removes a variable."""

    env: Mapping[str, str | None]
    steps: Sequence[ImageStep]
    hidden: Mapping[str, str]  # values of secrets
    digest: str
    cwd: str = ""


# -- reports of nodes --------------------------------------------------------------------------


class CallAnswer(Message, kind="answer"):
    """A rank ended its part of a call. The value or exception is in the body or in a file."""

    call: str = ""
    rank: Count = 0  # set by the node
    state: RankState = RankState.RETURNED
    sizes: Sequence[Count] = ()
    at_s: float = 0.0
    error: ErrorInfo | None = None
    exit_code: int | None = None
    file: str = ""
    payload: str = ""
    is_ours: bool = False


class CallItem(Message, kind="item"):
    """An item that a generator on rank 0 yielded."""

    call: str
    rank: Count = 0
    sizes: Sequence[Count] = ()
    at_s: float = 0.0
    waits: bool = False  # the rank waits for SendMore
    file: str = ""
    payload: str = ""
    is_ours: bool = False


class RankPrinted(Message, kind="log"):
    """Records of a rank's log, in the body. A negative rank stands for a framework's own processes."""

    world: Count
    rank: int
    call: str


class WorldAbsent(Message, kind="absent"):
    """A call arrived for ranks that no longer exist on this node."""

    world: Count


class CodeSynced(Message, kind="synced"):
    """A project is at a digest, or `error` explains why not."""

    project: str
    digest: str
    error: str = ""


class SettingUp(Message, kind="setting_up"):
    """A line of the steps' output."""

    line: str


class NodeSetUp(Message, kind="set_up"):
    """The set-up is done, or `error` explains why not."""

    digest: str
    error: str = ""
    hint: str = ""


# -- directions --------------------------------------------------------------------------------

LEAD_TO_COMPUTE_NODE = Direction(
    "lead",
    "compute's node",
    "Orders from a compute's lead to the agents of its nodes.",
    *(Welcome, Refused, Heartbeat, GiveIndex, EndAgent, PayloadPart, SyncCode, SetUpNode),
    *(ForkWorld, MakeObject, RunCall, SendMore, EndWorld, OpenStore, CloseStore),
)
COMPUTE_NODE_TO_LEAD = Direction(
    "compute's node",
    "lead",
    "Reports from the agents of a compute's nodes to its lead.",
    *(Hello, Heartbeat, JoinLead, NodeLeaving, PayloadPart, CodeSynced, SettingUp, NodeSetUp),
    *(ImportsReady, RankReport, NodeTrouble, CallAnswer, CallItem, RankPrinted),
    *(RankEnded, WorldAbsent, WorldCleared, StoreReady, StoreGone),
)
NODE_TO_RANK = Direction(
    "node",
    "rank that takes calls",
    "Orders to a rank that takes calls, over the socket pair it was forked with.",
    *(MakeObject, RunCall, SendMore),
)
CALL_RANK_TO_NODE = Direction(
    "rank that takes calls",
    "node",
    "Answers from a rank that takes calls.",
    *(CallAnswer, CallItem),
)

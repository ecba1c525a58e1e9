"""What clients ask of a compute's lead, and what they are told: calls and how they go, the compute itself."""

from __future__ import annotations

from windlass.wire.message import Count, Direction, JsonObject, Message
from windlass.wire.messages.computes import CallAnswer, MakeObject, PayloadPart, SyncCode
from windlass.wire.messages.jobs import CLIENT_TO_LEAD, LEAD_TO_CLIENT

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from windlass.spec.node_resources import NodeSizes
    from windlass.spec.work import ImageStep
    from windlass.wire.results import ErrorInfo
    from windlass.wire.states import CallState, RankState
    from windlass.wire.status import JobStatus, Verdict

# -- a call ------------------------------------------------------------------------------------


class WorldAsked(Message):
    """The nodes and ranks that a call wants."""

    nodes: Count
    min_nodes: Count
    procs: Count
    ranks: Sequence[Count] | None = None  # of all those, the ones to run on


class ProjectPlace(Message):
    """Where a call's code is; of a project that travels, `cwd` and `paths` are relative to its folder."""

    key: str = ""  # empty: it does not travel
    root: str = ""
    cwd: str = ""
    paths: Sequence[str] = ()
    digest: str = ""  # "as is": whatever code is there


class CallProfile(Message):
    """What a call has in common with others, said once per link."""

    name: str
    framework: str
    slot: str  # where its ranks are kept; empty: they are for one call
    instance: str  # which object it is a method of
    world: WorldAsked
    store: bool  # something is opened before its ranks start, where they meet
    preload: Sequence[str]
    start: str
    env: Mapping[str, str]
    project: ProjectPlace
    version: str  # of the project's files
    is_watched: bool
    method: str
    collect: str
    stream: bool
    timeout_s: float | None
    launch_timeout_s: float
    detach: bool
    sources: Mapping[str, str]
    sizes: NodeSizes | None = None  # of nodes whose framework counts resources itself


class SetProfile(Message, kind="profile"):
    """Calls over this link may name this profile by its key."""

    key: str
    profile: CallProfile


class AskCall(Message, kind="call"):
    """Run this; what is called is in the body, in parts that came before, or in a file."""

    id: str
    profile: str
    sizes: Sequence[Count] = ()
    payload: str = ""
    file: str = ""


class AttendCall(Message, kind="attend"):
    """Tell this client of a call from now on; `since`: so many calls were taken before it could come."""

    id: str
    since: Count = 0


class EndCall(Message, kind="end_call"):
    """End a call; `interrupt`: its ranks hear it as Ctrl-C."""

    id: str
    why: str = ""
    interrupt: bool = False
    now: bool = False


class AskCallStatus(Message, kind="call_status"):
    """What is known of a call?"""

    id: str


class AskCallLogs(Message, kind="call_logs"):
    """What have its ranks printed since these offsets?"""

    id: str
    seen: Mapping[str, Count]


# -- the compute -------------------------------------------------------------------------------


class AskInfo(Message, kind="info"):
    """What is known of the compute?"""


class ScaleNodes(Message, kind="scale"):
    """So many nodes from now on, or no fewer."""

    nodes: Count
    at_least: bool = False


class ConfigureCompute(Message, kind="configure"):
    """What may change while nodes live; what is not said stays as it is."""

    env: Mapping[str, str | None] | None = None
    steps: Sequence[ImageStep] | None = None
    hidden: Mapping[str, str] | None = None
    ttl_s: float | None = None
    record: Mapping[str, JsonObject] | None = None  # what was deployed, to be called by name


# -- answers -----------------------------------------------------------------------------------


class CallListed(Message):
    """One of a compute's last calls."""

    id: str
    name: str
    state: CallState


class ComputeInfo(Message, kind="info"):
    """What the lead says of its compute, and of itself."""

    job_id: str
    spill: str  # the folder for large payloads, on this machine
    nodes: Count
    here: Sequence[Count]
    projects: Mapping[str, str]  # digests
    calls: Sequence[CallListed]
    num_calls: Count
    idle_s: float
    ttl_s: float | None
    setup: str
    env: Mapping[str, str | None]
    steps: Sequence[ImageStep]
    record: Mapping[str, JsonObject]
    version: str
    python: str
    born: str  # tells one lead of a compute from the next
    before: Count | None = None  # how many nodes there were before a change


class CallAccepted(Message, kind="accepted"):
    """The call is the lead's now."""

    id: str


class CallForgotten(Message, kind="forgotten"):
    """The call was here, and is not known any more."""

    id: str


class CallUnknown(Message, kind="unknown"):
    """The call was never here."""

    id: str


class LeadEnding(Message, kind="leaving"):
    """The lead does not take the call, and is about to hang up."""

    id: str


class CallAgain(Message, kind="again"):
    """Say the call again, with the code that brings this digest up to date, or with what makes its object."""

    id: str
    has: str = ""
    make: bool = False


class CallQueued(Message, kind="queued"):
    """So many calls run before it; the first of them."""

    id: str
    ahead: Count
    first: str


class CallWaiting(Message, kind="waiting"):
    """What the call waits for."""

    id: str
    what: str


class CallStarted(Message, kind="started"):
    """A call that had to wait runs."""

    id: str


class CallSaid(Message, kind="said"):
    """A line for whoever waits for the call."""

    id: str
    line: str


class CallPrinted(Message, kind="log"):
    """Records of a rank's log, in the body."""

    id: str
    rank: int  # negative: of a node's own processes


class CallResult(Message, kind="result"):
    """A large answer of one rank; without a state, something that it yields."""

    id: str
    rank: Count
    state: RankState | None = None
    sizes: Sequence[Count] = ()
    at_s: float = 0.0
    error: ErrorInfo | None = None
    exit_code: int | None = None
    file: str = ""
    payload: str = ""


class CallResults(Message, kind="results"):
    """Small answers of several ranks, one after another in the body; `ends`: all is well, and over."""

    id: str
    ends: bool
    answers: Sequence[CallAnswer]


class CallEnded(Message, kind="done"):
    """How the call ended."""

    id: str
    state: CallState
    verdict: Verdict | None = None


class CallStatusTold(Message, kind="call_status"):
    """What is known of a call, in the form of a job's status."""

    id: str
    status: JobStatus


class CallLogsTold(Message, kind="call_logs"):
    """Rank, node and length of each stretch of log in the body."""

    id: str
    files: Sequence[Sequence[int]]


# -- who says what -----------------------------------------------------------------------------

CLIENT_TO_COMPUTE_LEAD = Direction(
    "client",
    "compute's lead",
    "What clients ask of a compute's lead.",
    *CLIENT_TO_LEAD.kinds.values(),
    *(PayloadPart, SyncCode, MakeObject, SetProfile),
    *(AskCall, AttendCall, EndCall, AskCallStatus, AskCallLogs),
    *(AskInfo, ScaleNodes, ConfigureCompute),
)
COMPUTE_LEAD_TO_CLIENT = Direction(
    "compute's lead",
    "client",
    "What clients of a compute are told.",
    *LEAD_TO_CLIENT.kinds.values(),
    *(PayloadPart, ComputeInfo),
    *(CallAccepted, CallForgotten, CallUnknown, LeadEnding, CallAgain),
    *(CallQueued, CallWaiting, CallStarted, CallSaid, CallPrinted),
    *(CallResult, CallResults, CallEnded, CallStatusTold, CallLogsTold),
)

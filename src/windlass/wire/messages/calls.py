"""Messages between clients and a compute's lead: calls, their progress, and the compute itself."""

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


class WorldRequest(Message):
    """Nodes and ranks that a call requests."""

    nodes: Count
    min_nodes: Count
    procs: Count
    ranks: Sequence[Count] | None = None  # run on these ranks only (default: all)


class ProjectPlace(Message):
    """Location of a call's code.

    If the project is sent to the nodes, `cwd` and `paths` are relative to its folder.
    """

    key: str = ""  # empty if the project is not sent
    root: str = ""
    cwd: str = ""
    paths: Sequence[str] = ()
    digest: str = ""  # "as is": the code that the nodes already have


class CallProfile(Message):
    """Settings that many calls share, sent once per connection."""

    name: str
    framework: str
    slot: str  # the slot that keeps its ranks, or empty if they serve one call
    instance: str  # the object that it is a method of
    world: WorldRequest
    store: bool  # a rendezvous store is opened before its ranks start
    preload: Sequence[str]
    start: str
    env: Mapping[str, str]
    project: ProjectPlace
    version: str  # version of the project's files
    is_watched: bool
    method: str
    collect: str
    stream: bool
    timeout_s: float | None
    launch_timeout_s: float
    detach: bool
    sources: Mapping[str, str]
    sizes: NodeSizes | None = None  # set if the framework counts resources itself


class SetProfile(Message, kind="profile"):
    """Define a profile. Later calls on this connection name it by its key."""

    key: str
    profile: CallProfile


class AskCall(Message, kind="call"):
    """Run a call. The payload is in the body, in parts sent earlier, or in a file."""

    id: str
    profile: str
    sizes: Sequence[Count] = ()
    payload: str = ""
    file: str = ""


class AttendCall(Message, kind="attend"):
    """Report on a call to this client from now on.

    `since` is the number of calls the lead had accepted before this one could have arrived.
    """

    id: str
    since: Count = 0


class EndCall(Message, kind="end_call"):
    """End a call. With `interrupt`, its ranks receive a KeyboardInterrupt, as on Ctrl-C."""

    id: str
    why: str = ""
    interrupt: bool = False
    now: bool = False


class AskCallStatus(Message, kind="call_status"):
    """Request a call's status."""

    id: str


class AskCallLogs(Message, kind="call_logs"):
    """Request the output of a call's ranks after these offsets."""

    id: str
    seen: Mapping[str, Count]


# -- the compute -------------------------------------------------------------------------------


class AskInfo(Message, kind="info"):
    """Request information about the compute."""


class ScaleNodes(Message, kind="scale"):
    """Set the number of nodes, or its minimum with `at_least`."""

    nodes: Count
    at_least: bool = False


class ConfigureCompute(Message, kind="configure"):
    """Change settings while nodes run. Omitted settings stay unchanged."""

    env: Mapping[str, str | None] | None = None
    steps: Sequence[ImageStep] | None = None
    hidden: Mapping[str, str] | None = None
    ttl_s: float | None = None
    record: Mapping[str, JsonObject] | None = None  # deployed callables, by name


# -- answers -----------------------------------------------------------------------------------


class CallListed(Message):
    """One of a compute's most recent calls."""

    id: str
    name: str
    state: CallState


class ComputeInfo(Message, kind="info"):
    """State of the compute and of its lead."""

    job_id: str
    spill: str  # the folder for large payloads, on this machine
    nodes: Count
    here: Sequence[Count]
    projects: Mapping[str, str]  # digests by project
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
    born: str  # distinguishes a compute's lead from its successor
    before: Count | None = None  # the number of nodes before a change


class CallAccepted(Message, kind="accepted"):
    """The lead accepted the call."""

    id: str


class CallForgotten(Message, kind="forgotten"):
    """The lead accepted this call but no longer keeps its outcome."""

    id: str


class CallUnknown(Message, kind="unknown"):
    """The lead never received this call."""

    id: str


class LeadEnding(Message, kind="leaving"):
    """The lead is stopping, so it does not accept the call and will close the connection."""

    id: str


class RepeatCall(Message, kind="again"):
    """Request to send the call again with the data that the lead lacks.

    With `make`, the lead lacks the object's constructor. Otherwise it lacks the code changes since the digest
    `has`.
    """

    id: str
    has: str = ""
    make: bool = False


class CallQueued(Message, kind="queued"):
    """The call is queued: the number of calls ahead of it, and the first of them."""

    id: str
    ahead: Count
    first: str


class CallWaiting(Message, kind="waiting"):
    """The call waits for something other than its turn."""

    id: str
    what: str


class CallStarted(Message, kind="started"):
    """A call that was waiting is running."""

    id: str


class CallNotice(Message, kind="said"):
    """A line of text for the clients that wait for the call."""

    id: str
    line: str


class CallPrinted(Message, kind="log"):
    """Records of a rank's log, in the body."""

    id: str
    rank: int  # negative for a node's own processes


class CallResult(Message, kind="result"):
    """A large answer of one rank. Without a state, an item that the rank yielded."""

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
    """Small answers of several ranks, concatenated in the body. With `ends`, the call has succeeded."""

    id: str
    ends: bool
    answers: Sequence[CallAnswer]


class CallEnded(Message, kind="done"):
    """Final state of a call that has ended."""

    id: str
    state: CallState
    verdict: Verdict | None = None


class CallStatusReply(Message, kind="call_status"):
    """A call's status, in the form of a job's status."""

    id: str
    status: JobStatus


class CallLogsReply(Message, kind="call_logs"):
    """Log sections in the body: the rank, node and length of each."""

    id: str
    files: Sequence[Sequence[int]]


# -- directions --------------------------------------------------------------------------------

CLIENT_TO_COMPUTE_LEAD = Direction(
    "client",
    "compute's lead",
    "Requests from clients to a compute's lead.",
    *CLIENT_TO_LEAD.kinds.values(),
    *(PayloadPart, SyncCode, MakeObject, SetProfile),
    *(AskCall, AttendCall, EndCall, AskCallStatus, AskCallLogs),
    *(AskInfo, ScaleNodes, ConfigureCompute),
)
COMPUTE_LEAD_TO_CLIENT = Direction(
    "compute's lead",
    "client",
    "Answers and reports from a compute's lead to its clients.",
    *LEAD_TO_CLIENT.kinds.values(),
    *(PayloadPart, ComputeInfo),
    *(CallAccepted, CallForgotten, CallUnknown, LeadEnding, RepeatCall),
    *(CallQueued, CallWaiting, CallStarted, CallNotice, CallPrinted),
    *(CallResult, CallResults, CallEnded, CallStatusReply, CallLogsReply),
)

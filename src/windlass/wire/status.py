"""Status of a job: phase, conditions, nodes, ranks, progress, verdict and timeline.

Contains the records, their JSON and the reader of the status file. The lead writes the status. Clients of any
version read it and ignore unknown keys.
"""

from __future__ import annotations

import enum
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from windlass import names, records
from windlass.errors import ProtocolError
from windlass.plan.plan import NodePlan, Plan
from windlass.trusted import open_now
from windlass.wire.job_folder import JobFolder
from windlass.wire.states import NOT_ENDED, MomentName, NodeState, RankState


class Phase(str, enum.Enum):
    """Phase of a job. The last four are final."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ENDED = "ended"  # the outcome is no longer known

    @property
    def is_final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.ENDED)


class FailureKind(str, enum.Enum):
    """Category of a failure."""

    USER_ERROR = "user error"
    KILLED = "killed by a signal"
    OUT_OF_MEMORY = "out of memory"
    LOST_NODE = "lost node"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    START_FAILED = "start failed"
    STEP_FAILED = "step failed"  # a step of an image failed
    UNKNOWN = "outcome not known"


def add_hint(message: str, hint: str) -> str:
    """Return a message with its hint, as one text."""
    return f"{message} -> {hint}" if hint else message


def cut_text(text: str, most: int) -> str:
    """Return at most `most` characters of a text, cut between words."""
    if len(text) <= most:
        return text
    head, _, part = text[: most - 3].rpartition(" ")
    return f"{head.rstrip() or part}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One fact about a job, with its time and reason. Programs match on `reason`."""

    type: str
    reason: str
    message: str
    since_s: float
    hint: str = ""  # how to fix it

    @property
    def text(self) -> str:
        return add_hint(self.message, self.hint)


_IN_STEP_S = 0.3  # synchronized ranks report steps that are at most this many seconds apart

_REASONS: Mapping[FailureKind, str] = {
    FailureKind.LOST_NODE: names.REASON_NODE_LOST,
    FailureKind.TIMEOUT: names.REASON_TIMEOUT,
    FailureKind.CANCELLED: names.REASON_CANCELLED,
    FailureKind.START_FAILED: names.REASON_START_FAILED,
    FailureKind.UNKNOWN: names.REASON_OUTCOME_UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Verdict on a failure: the first rank or node that failed, the cause, and the next command."""

    kind: FailureKind
    message: str
    rank: int | None = None
    node: int | None = None
    node_name: str = ""
    attempt: int = 0
    at_s: float = 0.0
    exception: str = ""  # type and message, as Python prints them
    file: str = ""
    line: int = 0
    source: str = ""  # text of that line
    exit_code: int | None = None
    signal: str = ""
    others: Mapping[str, int] = field(default_factory=dict)  # number of the other ranks by state

    # Further details of the cause. `message` ends with them.
    note: str = ""
    next: str = ""  # command to run next

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def reason(self) -> str:
        """Reason in the job's conditions, for programs."""
        own = names.REASON_NODE_LOST if self.rank is None else names.REASON_RANK_FAILED
        return _REASONS.get(self.kind, own)


def make_job_verdict(
    plan: Plan,
    kind: FailureKind,
    message: str,
    *,
    at_s: float,
    attempt: int = 0,
    node: int | None = None,
) -> Verdict:
    """Return a verdict about the job or about one of its nodes."""
    return Verdict(
        kind=kind,
        message=message,
        node=node,
        node_name=plan.nodes[node].name if node is not None else "",
        attempt=attempt,
        at_s=at_s,
        next=f"windlass logs {plan.job_id}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Step of the slowest rank and the metrics that it reported.

    All values but `max_step` and `at_s` are of this rank. `metric_steps` holds the steps of older metrics.
    """

    step: int | None = None
    max_step: int | None = None  # step of the fastest rank
    rank: int | None = None  # the rank that `step` and `metrics` come from
    total: int | None = None
    metrics: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    # steps of metrics that were last reported before `step`
    metric_steps: Mapping[str, int] = field(default_factory=dict)
    at_s: float = 0.0  # time of the last report by any rank
    step_at_s: float = 0.0  # when `step` last changed
    eta_s: float | None = None
    steps_per_s: float | None = None

    @property
    def is_spread(self) -> bool:
        """True if ranks are too far apart to be synchronized.

        Ranks report ten times a second, so even synchronized ranks appear slightly apart.
        """
        if self.step is None or self.max_step is None:
            return False
        return self.max_step - self.step > max(1.0, _IN_STEP_S * (self.steps_per_s or 0.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankStatus:
    """One rank in the current attempt."""

    rank: int
    node: int
    state: RankState = RankState.PENDING
    pid: int | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node, its agent and its environment."""

    index: int
    name: str
    state: NodeState = NodeState.PENDING
    pid: int | None = None
    python: str = ""
    host: str = ""  # the node's machine, if that has its own name
    pod: str = ""  # name of its current or last pod


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One event of the timeline from submit to the end."""

    name: MomentName
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Everything that is currently known about a job."""

    job_id: str
    name: str
    engine: str
    work: str
    phase: Phase = Phase.PENDING
    attempt: int = 0
    restarts: int = 0  # allowed after failures of the code; lost nodes have their own budget
    num_nodes: int = 1
    num_ranks: int = 1
    detach: bool = False
    created_at_s: float = 0.0
    ended_at_s: float | None = None
    conditions: tuple[Condition, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
    ranks: tuple[RankStatus, ...] = ()
    progress: Progress = field(default_factory=Progress)
    verdict: Verdict | None = None
    history: tuple[Verdict, ...] = ()  # verdicts of attempts that were restarted
    timeline: tuple[Moment, ...] = ()

    def lose_ranks(self) -> tuple[RankStatus, ...]:
        """Return the ranks, with every unfinished rank marked as lost."""
        return tuple(
            replace(rank, state=RankState.LOST) if rank.state in NOT_ENDED else rank
            for rank in self.ranks
        )

    def count(self, state: RankState) -> int:
        return sum(rank.state == state for rank in self.ranks)


_MAX_TIME_S = 253_000_000_000.0  # year 9987, because datetime supports years up to 9999


def make_first_status(plan: Plan) -> JobStatus:
    """Return a job's status before any report has arrived."""
    return JobStatus(
        job_id=plan.job_id,
        name=plan.name,
        engine=plan.engine,
        work=plan.work.label,
        restarts=plan.restarts,
        num_nodes=len(plan.nodes),
        num_ranks=plan.num_ranks,
        detach=plan.detach,
        created_at_s=plan.created_at_s,
        nodes=tuple(NodeStatus(index=node.index, name=node.name) for node in plan.nodes),
        ranks=make_ranks(plan),
        timeline=(Moment(name=MomentName.SUBMITTED, at_s=plan.created_at_s),),
    )


def render_status(status: JobStatus) -> bytes:
    """Return the content of the status file."""
    return json.dumps(records.to_json(status), separators=(",", ":")).encode()


def make_ranks(plan: Plan) -> tuple[RankStatus, ...]:
    """Return the status of every rank before the start."""
    return tuple(
        RankStatus(rank=rank, node=node.index) for node in plan.nodes for rank in node.ranks
    )


def read_status(text: bytes) -> JobStatus:
    """Return a status from untrusted JSON. Raise ProtocolError if it is malformed or out of range."""
    status = records.read(JobStatus, records.parse(text, "the status"))
    if not (0 <= status.num_ranks <= names.MAX_RANKS and 0 <= status.num_nodes <= names.MAX_RANKS):
        raise ProtocolError(
            f"the status is out of range: {status.num_ranks:.3g} ranks on {status.num_nodes:.3g} nodes"
        )
    if not 0 <= status.attempt < names.MAX_ATTEMPTS:
        raise ProtocolError(f"the status has an attempt that is out of range: {status.attempt:.3g}")
    if not all(0 <= at_s < _MAX_TIME_S for at_s in (status.created_at_s, status.ended_at_s or 0.0)):
        raise ProtocolError("the status has a time that is out of range")
    return status


class StatusFile:
    """Reader of a status file that parses it only when it has changed.

    `read` raises OSError if the file cannot be opened, and ProtocolError if it is malformed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._status: JobStatus | None = None

    @property
    def last(self) -> JobStatus | None:
        """Most recently read status."""
        return self._status

    def read_known(self) -> JobStatus | None:
        """Return the status, or None if it is absent or incomplete, for example after a power failure."""
        try:
            return self.read()
        except (FileNotFoundError, ProtocolError):
            return None

    def read(self) -> JobStatus:
        """Return the current status."""
        with open(self._path, "rb", opener=open_now) as file:
            info = os.fstat(file.fileno())
            stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
            if self._status is None or stamp != self._stamp:
                self._status = read_status(file.read(records.MAX_JSON_BYTES + 1))
                self._stamp = stamp
            return self._status


def render_world(world: Plan) -> bytes:
    """Return the content of an attempt's world file."""
    return json.dumps([records.to_json(node) for node in world.nodes]).encode()


def read_world(folder: JobFolder, plan: Plan, attempt: int) -> tuple[NodePlan, ...]:
    """Return the nodes of one attempt, with the ranks they had in it."""
    try:
        with folder.world(attempt).open("rb") as file:
            text = file.read(records.MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        return plan.nodes
    world = records.parse(text, f"the world of attempt {attempt}")
    if not isinstance(world, list):
        raise ProtocolError(f"the world of attempt {attempt} is not a list of nodes")
    nodes = tuple(records.read(NodePlan, node) for node in world)
    is_sane = all(min(node.index, node.first_rank, node.num_ranks) >= 0 for node in nodes)
    if not is_sane or sum(node.num_ranks for node in nodes) > names.MAX_RANKS:
        raise ProtocolError(f"the world of attempt {attempt} has more than {names.MAX_RANKS} ranks")
    return nodes

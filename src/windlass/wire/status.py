"""What was seen of a job: phase, conditions, nodes, ranks, progress, verdict, timeline.

Records with their JSON, and the file they are kept in. Written by the lead, read by clients of any age:
unknown keys are ignored.
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
    """Where a job is; the last four are final."""

    PENDING = "pending"
    STARTING = "starting"
    RUNNING = "running"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ENDED = "ended"  # and how is not known any more

    @property
    def is_final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED, Phase.ENDED)


class FailureKind(str, enum.Enum):
    """Whose fault it was."""

    USER_ERROR = "user error"
    KILLED = "killed by a signal"
    OUT_OF_MEMORY = "out of memory"
    LOST_NODE = "lost node"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    START_FAILED = "start failed"
    STEP_FAILED = "step failed"  # of an image
    UNKNOWN = "outcome not known"


def add_hint(message: str, hint: str) -> str:
    """What is so and what to do about it, where there is room for one text only."""
    return f"{message} -> {hint}" if hint else message


def cut_text(text: str, most: int) -> str:
    """Return at most so many characters of a text, and never a part of a word."""
    if len(text) <= most:
        return text
    head, _, part = text[: most - 3].rpartition(" ")
    return f"{head.rstrip() or part}..."


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """One thing that is so, since when, and why. Programs match on `reason`, people read the rest."""

    type: str
    reason: str
    message: str
    since_s: float
    hint: str = ""  # what to do about it

    @property
    def text(self) -> str:
        return add_hint(self.message, self.hint)


_IN_STEP_S = 0.3  # ranks in step report steps that are this many seconds apart at most

_REASONS: Mapping[FailureKind, str] = {
    FailureKind.LOST_NODE: names.REASON_NODE_LOST,
    FailureKind.TIMEOUT: names.REASON_TIMEOUT,
    FailureKind.CANCELLED: names.REASON_CANCELLED,
    FailureKind.START_FAILED: names.REASON_START_FAILED,
    FailureKind.UNKNOWN: names.REASON_OUTCOME_UNKNOWN,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Who failed first, where, when, why, and what to type next."""

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
    source: str = ""  # the line itself
    exit_code: int | None = None
    signal: str = ""
    others: Mapping[str, int] = field(default_factory=dict)  # what became of the other ranks
    note: str = ""  # what else to know of the cause; `message` ends with it
    next: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}" if self.file else ""

    @property
    def reason(self) -> str:
        """What the job's conditions say of it, for programs."""
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
    """Return a verdict about the job, or about a node of it."""
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
    """Step of the rank that is furthest behind, and the metrics that this rank reported.

    All values but `max_step` are this rank's. A metric of an earlier step is in `metric_steps`.
    """

    step: int | None = None
    max_step: int | None = None  # of the rank that is furthest ahead
    rank: int | None = None  # the one that `step` and `metrics` are from
    total: int | None = None
    metrics: Mapping[str, float | int | str | bool | None] = field(default_factory=dict)
    metric_steps: Mapping[str, int] = field(default_factory=dict)  # where it is not `step`
    at_s: float = 0.0  # when the last report was made, by any rank
    step_at_s: float = 0.0  # when `step` last changed
    eta_s: float | None = None
    steps_per_s: float | None = None

    @property
    def is_spread(self) -> bool:
        """True if ranks are further apart than reports of ranks in step, sent ten times a second, can be."""
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
    """One node: its agent, and what was found there."""

    index: int
    name: str
    state: NodeState = NodeState.PENDING
    pid: int | None = None
    python: str = ""
    host: str = ""  # the machine it is on, where that has a name of its own
    pod: str = ""  # the name of the pod that it is, or was last


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One line of the timeline from submit to the end."""

    name: MomentName
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """Everything that is known of a job now."""

    job_id: str
    name: str
    engine: str
    work: str
    phase: Phase = Phase.PENDING
    attempt: int = 0
    restarts: int = 0
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
        """The ranks when all that had not ended are lost."""
        return tuple(
            replace(rank, state=RankState.LOST) if rank.state in NOT_ENDED else rank
            for rank in self.ranks
        )

    def count(self, state: RankState) -> int:
        return sum(rank.state == state for rank in self.ranks)


_MAX_TIME_S = 253_000_000_000.0  # of the year 9987: calendars end with 9999


def make_first_status(plan: Plan) -> JobStatus:
    """A job's status before anything has been seen of it."""
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
    """What stands in the status file."""
    return json.dumps(records.to_json(status), separators=(",", ":")).encode()


def make_ranks(plan: Plan) -> tuple[RankStatus, ...]:
    """Every rank, none of them started."""
    return tuple(
        RankStatus(rank=rank, node=node.index) for node in plan.nodes for rank in node.ranks
    )


def read_status(text: bytes) -> JobStatus:
    """A status that somebody else wrote; ProtocolError if it is malformed or out of range."""
    status = records.read(JobStatus, records.parse(text, "the status"))
    if not (0 <= status.num_ranks <= names.MAX_RANKS and 0 <= status.num_nodes <= names.MAX_RANKS):
        raise ProtocolError(
            f"the status speaks of {status.num_ranks:.3g} ranks on {status.num_nodes:.3g} nodes"
        )
    if not 0 <= status.attempt < names.MAX_ATTEMPTS:
        raise ProtocolError("the status speaks of an attempt that cannot be")
    if not all(0 <= at_s < _MAX_TIME_S for at_s in (status.created_at_s, status.ended_at_s or 0.0)):
        raise ProtocolError("the status speaks of a time that cannot be")
    return status


class StatusFile:
    """The status in one file; `read` raises what opening and parsing it raise."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self._status: JobStatus | None = None

    @property
    def last(self) -> JobStatus | None:
        """What was last read."""
        return self._status

    def read_known(self) -> JobStatus | None:
        """The same, but None if there is no status yet or only half of one, as after a power cut."""
        try:
            return self.read()
        except (FileNotFoundError, ProtocolError):
            return None

    def read(self) -> JobStatus:
        with open(self._path, "rb", opener=open_now) as file:
            info = os.fstat(file.fileno())
            stamp = (info.st_ino, info.st_mtime_ns, info.st_size)
            if self._status is None or stamp != self._stamp:
                self._status = read_status(file.read(records.MAX_JSON_BYTES + 1))
                self._stamp = stamp
            return self._status


def render_world(world: Plan) -> bytes:
    """What stands in the file."""
    return json.dumps([records.to_json(node) for node in world.nodes]).encode()


def read_world(folder: JobFolder, plan: Plan, attempt: int) -> tuple[NodePlan, ...]:
    """The nodes of one attempt, with the ranks they had in it."""
    try:
        with folder.world(attempt).open("rb") as file:
            text = file.read(records.MAX_JSON_BYTES + 1)
    except FileNotFoundError:
        return plan.nodes
    world = records.parse(text, f"the world of attempt {attempt}")
    if not isinstance(world, list):
        raise ProtocolError(f"the world of attempt {attempt} is no list of nodes")
    nodes = tuple(records.read(NodePlan, node) for node in world)
    is_sane = all(min(node.index, node.first_rank, node.num_ranks) >= 0 for node in nodes)
    if not is_sane or sum(node.num_ranks for node in nodes) > names.MAX_RANKS:
        raise ProtocolError(f"the world of attempt {attempt} has more than {names.MAX_RANKS} ranks")
    return nodes

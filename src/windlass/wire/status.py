"""What was seen of a job: phase, conditions, nodes, ranks, progress, verdict, timeline.

Records only, with their JSON. Written by the lead, read by clients of any age: unknown keys are ignored.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from windlass import names
from windlass.wire.states import NOT_ENDED, MomentName, NodeState, RankState

if TYPE_CHECKING:
    from windlass.plan.plan import Plan


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

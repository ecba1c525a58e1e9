"""Rules for the status of one job on a cluster: each turns a frozen observation into a ruling.

The rules are pure: no I/O, no clock. `ClusterJob` takes an observation, calls `judge`, and carries
out the actions in the ruling. `DECISIONS` and `ADDITIONS` list the rules in the order in which they
apply. Some facts cost a request. A rule that needs one returns a `Lookup`, and `ClusterJob` looks
it up and calls `judge` again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

from windlass import names
from windlass.engines.cluster.job_observation import JobSnapshot, Observation
from windlass.errors import EngineError
from windlass.kube.diagnosis.blocker import CONDITION
from windlass.kube.diagnosis.pod_endings import DeadPod, read_dead_pods, timeline
from windlass.kube.objects.fields import created_s, name_of, started_s, uid_of
from windlass.kube.objects.manifests import pod_of
from windlass.spec.work import Calls
from windlass.wire.states import MomentName, NodeState
from windlass.wire.status import (
    Condition,
    FailureKind,
    JobStatus,
    Moment,
    Phase,
    Verdict,
    make_job_verdict,
)

UNSEEN = "the API server has not listed its pods yet: this is the last known state"
BLOCKED_AFTER_S = 1.0  # creating pods takes a moment, so a younger job is not called blocked
CANCEL_S = 5.0  # how long an unreachable lead may take to cancel its job
LEFTOVERS_S = 3.0  # a Job may end a moment before the log of its lead is complete
_SAME_LOSS_S = 120.0  # a lost node and a pod's end that are further apart are unrelated

_EXPLAINING = (FailureKind.OUT_OF_MEMORY, FailureKind.LOST_NODE)
_PHASES: Mapping[FailureKind, Phase] = {
    FailureKind.CANCELLED: Phase.CANCELLED,
    FailureKind.UNKNOWN: Phase.ENDED,
}
_KEEP = (
    "to keep a job's outcome, stay attached (windlass run), check a detached job before its pods are "
    "deleted (windlass status), or write results to a volume (--volume)"
)
# The API server's clock counts whole seconds, so moments in the same second need a fixed order.
_ORDER = {name: at for at, name in enumerate(MomentName)}


# -- rulings -------------------------------------------------------------------------------------


class Lookup(enum.Enum):
    """Fact that a rule needs and that costs requests."""

    LEFTOVERS = enum.auto()  # the last status and results in the pods' logs of an ended job
    POD_ENDINGS = enum.auto()
    BLOCKERS = enum.auto()
    PODS_MADE = enum.auto()  # how many pods the controller of the only pod has created


class Action(enum.Enum):
    """Action of a ruling in the cluster or in the job's folder."""

    END_UNREACHABLE_PODS = enum.auto()
    DELETE = enum.auto()  # the main object, and with it all others
    GIVE_UP = enum.auto()  # let the object fail by itself, so that later clients find its pods
    KEEP = enum.auto()  # write the last status to the job's folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Ruling:
    """Decision of one rule, or of all rules that were applied.

    With a lookup or an error, no further rule applies, and the status is meaningless.
    """

    status: JobStatus
    is_last: bool = False  # skip the remaining decisions
    actions: tuple[Action, ...] = ()  # at most one per rule
    lookup: Lookup | None = None
    error: EngineError | None = None


Rule: TypeAlias = Callable[[Observation, JobStatus], "Ruling | None"]


def judge(observation: Observation) -> Ruling:
    """Return the status of a job and the actions to take, or a lookup or an error."""
    decided = apply_rules(DECISIONS, observation, Ruling(status=observation.status))
    if decided.lookup is not None or decided.error is not None:
        return decided
    return apply_rules(ADDITIONS, observation, decided)


def apply_rules(rules: Sequence[Rule], observation: Observation, ruling: Ruling) -> Ruling:
    """Apply rules in order, each to the status that the previous one returned.

    Each action is listed once, even if several rules return it.
    """
    for rule in rules:
        if (ruled := rule(observation, ruling.status)) is not None:
            ruling = replace(ruled, actions=tuple(dict.fromkeys(ruling.actions + ruled.actions)))
            if ruling.is_last or ruling.lookup is not None or ruling.error is not None:
                break
    return ruling


# -- decisions: whether the job is over, and its progress -------------------------------------------


def accept_reported_end(observation: Observation, status: JobStatus) -> Ruling | None:
    """Accept the end that the lead has reported."""
    return Ruling(status=status, is_last=True) if observation.status.phase.is_final else None


def wait_for_first_lists(observation: Observation, status: JobStatus) -> Ruling | None:
    """Keep the earlier status until the first lists of objects are complete."""
    return None if observation.watch.is_listed else _show_unseen(observation, status)


def judge_missing_object(observation: Observation, status: JobStatus) -> Ruling | None:
    """End a job whose main object was deleted, unless only the watch failed."""
    if observation.watch.job is not None:
        return None
    if observation.watch_failure is not None:
        return Ruling(status=status, error=observation.watch_failure)
    if observation.watch.error is not None:
        return _show_unseen(observation, status)
    return Ruling(status=_end_deleted(observation, status), is_last=True)


def read_leftovers(observation: Observation, status: JobStatus) -> Ruling | None:
    """Request the logs of a finished job, because node 0's log may contain its final status."""
    is_due = _has_visibly_ended(observation) and not observation.client.has_leftovers
    return Ruling(status=status, lookup=Lookup.LEFTOVERS) if is_due else None


def wait_for_late_status(observation: Observation, status: JobStatus) -> Ruling | None:
    """Wait for the last status of a job that ended seconds ago."""
    is_fresh = observation.now_s - observation.ended_at_s < LEFTOVERS_S
    if not _has_visibly_ended(observation) or not is_fresh:
        return None
    if status.phase is Phase.STOPPING:
        return Ruling(status=status, is_last=True)
    condition = Condition(
        type=Phase.STOPPING.value,
        reason=names.REASON_OUTCOME_UNKNOWN,
        message="it has ended; its last status and results are being read",
        since_s=observation.ended_at_s,
    )
    stopping = replace(status, phase=Phase.STOPPING, conditions=(*status.conditions, condition))
    return Ruling(status=stopping, is_last=True)


def judge_completed(observation: Observation, status: JobStatus) -> Ruling | None:
    """End a job whose agents exited normally, but whose outcome cannot be read."""
    if not _has_visibly_ended(observation) or not observation.watch.has_completed:
        return None
    message, at_s = _describe_lost_outcome(observation.watch), observation.ended_at_s
    ended = _end(observation, status, FailureKind.UNKNOWN, message, at_s=at_s)
    return Ruling(status=ended, is_last=True)


def judge_failed(observation: Observation, status: JobStatus) -> Ruling | None:
    """End a job whose object has failed, with the cause from its pods and their events."""
    if not _has_visibly_ended(observation):
        return None
    if observation.endings is None:
        return Ruling(status=status, lookup=Lookup.POD_ENDINGS)
    last, last_line = next(reversed(observation.endings.dead), None), observation.endings.last_line
    kind, node, failure = FailureKind.LOST_NODE, None, observation.watch.failure
    message = f"its pods failed and are gone{f' ({failure})' if failure else ''}"
    if last is not None:
        kind, node = last.ending.kind, last.index
        message = f"{last.ending.message}{f': {last_line}' if last_line else ''}"
    ended = _end(observation, status, kind, message, node=node, at_s=observation.ended_at_s)
    return Ruling(status=ended, is_last=True)


def end_unreachable_pods(observation: Observation, status: JobStatus) -> Ruling | None:
    """End pods on unreachable machines, for kinds that only replace a pod once it has ended."""
    can_end = observation.dialect.end_lost_pod is not None and observation.watch.outage is None
    return Ruling(status=status, actions=(Action.END_UNREACHABLE_PODS,)) if can_end else None


def read_leftovers_of_silent_lead(observation: Observation, status: JobStatus) -> Ruling | None:
    """Request the logs of an unreachable lead whose pod keeps running after its job has ended."""
    watch, ttl_s = observation.watch, pod_of(observation.plan).ttl_s
    is_silent = bool(watch.running_leads) and not observation.connection.is_up
    if not observation.dialect.stays_up or not is_silent or ttl_s is None:
        return None
    runs_for_s = observation.now_s - (started_s(watch.running_leads[-1]) or observation.now_s)
    is_due = runs_for_s > ttl_s and not observation.client.has_leftovers
    return Ruling(status=status, lookup=Lookup.LEFTOVERS) if is_due else None


def delete_cancelled(observation: Observation, status: JobStatus) -> Ruling | None:
    """Delete a cancelled job whose lead is missing or does not answer in time."""
    waited_s = observation.client.cancelled_for_s
    if waited_s is None or observation.connection.is_up:
        return None
    if observation.watch.running_leads and waited_s <= CANCEL_S:
        return None
    ended = _end_deleted(observation, status)
    return Ruling(status=ended, is_last=True, actions=(Action.DELETE,))


def trust_lead(observation: Observation, status: JobStatus) -> Ruling | None:
    """Trust a connected lead, except while it waits for nodes: it does not know what delays them."""
    is_compute = isinstance(observation.plan.work, Calls)
    lacks_nodes = is_compute and any(
        node.state in (NodeState.PENDING, NodeState.LOST) for node in status.nodes
    )
    is_waiting = status.phase is Phase.STARTING or lacks_nodes
    knows_best = observation.connection.is_up and not is_waiting
    return Ruling(status=status, is_last=True) if knows_best else None


def fail_without_watch(observation: Observation, status: JobStatus) -> Ruling | None:
    """Raise if the watch failed permanently and the lead is unreachable."""
    error = observation.watch_failure
    return None if error is None else Ruling(status=status, error=error)


def wait_for_api_server(observation: Observation, status: JobStatus) -> Ruling | None:
    """Stop while the API server is unreachable: each request would wait ten seconds."""
    return None if observation.api_error is None else Ruling(status=status, is_last=True)


def fail_without_permission(observation: Observation, status: JobStatus) -> Ruling | None:
    """Raise if this user may not reach the lead."""
    error = None if observation.connection.is_up else observation.connection.forbidden
    return None if error is None else Ruling(status=status, error=error)


def add_blockers(observation: Observation, status: JobStatus) -> Ruling | None:
    """Add the reasons why the job does not start."""
    if observation.now_s - status.created_at_s < BLOCKED_AFTER_S:
        return None
    if observation.blockers is None:
        return Ruling(status=status, lookup=Lookup.BLOCKERS)
    conditions = (*status.conditions, *observation.blockers.conditions)
    return Ruling(status=replace(status, conditions=conditions))


def warn_of_expired_keys(observation: Observation, status: JobStatus) -> Ruling | None:
    """Warn that the job's certificates are not valid, so no client can reach its lead."""
    expired = observation.connection.expired
    if expired is None or observation.connection.is_up:
        return None
    text = f"{expired.message}; {expired.hint}"
    return Ruling(status=_warn(observation, status, names.REASON_KEYS_EXPIRED, text))


def warn_of_silent_lead(observation: Observation, status: JobStatus) -> Ruling | None:
    """Warn that node 0 is running but unreachable, so its state is unknown."""
    lead, connection = observation.watch.lead, observation.connection
    if connection.expired is not None and not connection.is_up:
        return None
    if not lead or not observation.client.is_visit or connection.is_synced:
        return None
    text = f"node 0 (pod {lead}) is running but does not answer: its ranks, progress and output are unknown"
    return Ruling(status=_warn(observation, status, names.REASON_LEAD_SILENT, text))


def give_up_unstartable(observation: Observation, status: JobStatus) -> Ruling | None:
    """Fail a job whose image lacks the interpreter, because every further pod would fail too."""
    blocker = observation.blockers.unstartable if observation.blockers else None
    if blocker is None or observation.watch.running_leads:
        return None
    hint, kind = blocker.hint, FailureKind.START_FAILED
    ended = _end(observation, status, kind, blocker.message, hint=hint)
    return Ruling(status=ended, is_last=True, actions=(Action.GIVE_UP,))


def delete_late(observation: Observation, status: JobStatus) -> Ruling | None:
    """Enforce the start timeout, because a lead that never starts cannot."""
    limit_s = observation.client.start_timeout_s
    if limit_s is None or observation.connection.is_synced:
        return None
    if observation.now_s - status.created_at_s <= limit_s:
        return None
    blocked = next((c for c in status.conditions if c.type == CONDITION), None)
    cause, hint = (f": {blocked.message}", blocked.hint) if blocked else ("", "")
    message = f"it had no nodes after {limit_s:g} s (--join-timeout){cause}"
    ended = _end(observation, status, FailureKind.START_FAILED, message, hint=hint)
    return Ruling(status=ended, is_last=True, actions=(Action.DELETE,))


DECISIONS: tuple[Rule, ...] = (
    accept_reported_end,
    wait_for_first_lists,
    judge_missing_object,
    read_leftovers,
    wait_for_late_status,
    judge_completed,
    judge_failed,
    end_unreachable_pods,
    read_leftovers_of_silent_lead,
    delete_cancelled,
    trust_lead,
    fail_without_watch,
    wait_for_api_server,
    fail_without_permission,
    add_blockers,
    warn_of_expired_keys,
    warn_of_silent_lead,
    give_up_unstartable,
    delete_late,
)


# -- additions: facts from the API server, for any status -------------------------------------------


def warn_of_forgotten_pods(observation: Observation, status: JobStatus) -> Ruling | None:
    """Warn that the only node had an earlier pod, which the new lead does not know about."""
    dialect, pods = observation.dialect, observation.watch.pods
    if status.phase.is_final or not dialect.pod_made or len(observation.plan.nodes) != 1:
        return None
    if len({uid_of(pod) for pod in observation.watch.all_pods}) < 2:
        if not observation.client.is_visit or observation.watch.job is None:
            return None  # this client would know about an earlier pod
        if observation.num_pods_made is None:
            return Ruling(status=status, lookup=Lookup.PODS_MADE)
        if observation.num_pods_made < 2:
            return None
    text = (
        f"its pod was replaced: a {dialect.kind.name} of one node keeps no record of earlier attempts, so "
        "it restarted as attempt 0, and --node-restarts does not count the loss; limit the job with --timeout"
    )
    since_s = max(map(created_s, pods), default=0.0)
    reason = names.REASON_LOSS_FORGOTTEN
    return Ruling(status=_warn(observation, status, reason, text, since_s=since_s))


def add_moments(observation: Observation, status: JobStatus) -> Ruling | None:
    """Add the times at which pods were queued, scheduled and started."""
    known = {moment.name: moment.at_s for moment in status.timeline}
    passed = timeline(
        observation.watch.pods,
        indexes=observation.indexes,
        num_nodes=observation.plan.min_nodes,
        joined_at_s=known.get(MomentName.NODES_JOINED),
    )
    # the API server's times are whole seconds, so no moment may be earlier than the job's creation
    new = [
        Moment(name=moment.name, at_s=max(moment.at_s, status.created_at_s))
        for moment in passed
        if moment.name not in known
    ]
    moments = sorted((*new, *status.timeline), key=lambda m: (m.at_s, _ORDER[m.name]))
    return Ruling(status=replace(status, timeline=tuple(moments)))


def explain_losses(observation: Observation, status: JobStatus) -> Ruling | None:
    """Add the reasons for lost nodes, which the lead does not know."""
    verdicts = (*status.history, status.verdict)
    if not any(verdict is not None and is_unexplained(verdict) for verdict in verdicts):
        return None
    dead = read_dead_pods(observation.watch.all_pods, indexes=observation.indexes)
    history = tuple(explain_loss(verdict, dead) for verdict in status.history)
    verdict = explain_loss(status.verdict, dead) if status.verdict else None
    return Ruling(status=replace(status, history=history, verdict=verdict))


def keep_end(observation: Observation, status: JobStatus) -> Ruling | None:
    """Write the last status to the job's folder on this machine."""
    is_settled = _is_settled(observation, status)
    return Ruling(status=status, actions=(Action.KEEP,)) if is_settled else None


def delete_kept(observation: Observation, status: JobStatus) -> Ruling | None:
    """Delete a cancelled job, or an object that never ends by itself, once its end is recorded."""
    is_removable = status.phase is Phase.CANCELLED or observation.dialect.stays_up
    is_due = is_removable and _is_settled(observation, status)
    return Ruling(status=status, actions=(Action.DELETE,)) if is_due else None


ADDITIONS: tuple[Rule, ...] = (
    warn_of_forgotten_pods,
    add_moments,
    explain_losses,
    keep_end,
    delete_kept,
)


# -- conditions and ends -----------------------------------------------------------------------------


def is_unexplained(verdict: Verdict) -> bool:
    """Return whether a verdict names a lost node, but not the reason."""
    return verdict.kind is FailureKind.LOST_NODE and verdict.node is not None


def explain_loss(verdict: Verdict, dead: Sequence[DeadPod]) -> Verdict:
    """Return the verdict with the ending of the node's pod, if one ended near the loss."""
    if not is_unexplained(verdict):
        return verdict
    near = [
        pod
        for pod in dead
        if pod.index == verdict.node and _seconds_apart(pod, verdict) < _SAME_LOSS_S
    ]
    if not near:
        return verdict
    pod = min(near, key=lambda pod: (_seconds_apart(pod, verdict), -(pod.created_s or 0.0)))
    # a signal alone adds no information: the lead already knows that the pod ended
    if pod.ending.message in verdict.message or pod.ending.kind not in _EXPLAINING:
        return verdict
    message = f"{verdict.message.partition(':')[0]}: {pod.ending.message}"
    return replace(verdict, kind=pod.ending.kind, message=message)


def _seconds_apart(pod: DeadPod, verdict: Verdict) -> float:
    """Return the time between a pod's end and a loss. An evicted pod may lack an end time."""
    if pod.ended_s is not None:
        return abs(pod.ended_s - verdict.at_s)
    return 0.0 if pod.created_s is not None and pod.created_s <= verdict.at_s else _SAME_LOSS_S


def _has_visibly_ended(observation: Observation) -> bool:
    return observation.watch.has_ended and observation.watch.error is None


def _is_settled(observation: Observation, status: JobStatus) -> bool:
    """Return whether a status is final. While pods exist, an unknown outcome may still become known."""
    is_unknown = status.phase is Phase.ENDED and bool(observation.watch.pods)
    return status.phase.is_final and not is_unknown


def _show_unseen(observation: Observation, status: JobStatus) -> Ruling:
    """Return the earlier status, with a warning for clients that would mistake it for the current one."""
    if observation.client.is_visit and not observation.connection.is_up:
        status = _warn(observation, status, names.REASON_UNSEEN, UNSEEN)
    return Ruling(status=status, is_last=True)


def _warn(
    observation: Observation,
    status: JobStatus,
    reason: str,
    message: str,
    *,
    since_s: float | None = None,
) -> JobStatus:
    at_s = observation.now_s if since_s is None else since_s
    condition = Condition(type="warning", reason=reason, message=message, since_s=at_s)
    return replace(status, conditions=(*status.conditions, condition))


def _describe_lost_outcome(watch: JobSnapshot) -> str:
    if watch.leads:
        lead = name_of(watch.leads[-1])
        return f"its outcome is in the log of pod {lead}, which cannot be read now"
    return "it finished, but its outcome was lost with its pods"


def _end_deleted(observation: Observation, status: JobStatus) -> JobStatus:
    """Return the last status of a job whose main object was deleted, by this client or another."""
    why, watch = observation.client.cancelled_why, observation.watch
    if not why and watch.has_completed:
        return _end(observation, status, FailureKind.UNKNOWN, _describe_lost_outcome(watch))
    message = why or f"its {observation.dialect.kind.name} was deleted from the cluster"
    return _end(observation, status, FailureKind.CANCELLED, message)


def _end(
    observation: Observation,
    status: JobStatus,
    kind: FailureKind,
    message: str,
    *,
    node: int | None = None,
    at_s: float | None = None,
    hint: str = "",
) -> JobStatus:
    """Return the final status of a job that ended at `at_s` (default: now). `hint` is the next step."""
    at_s = at_s or observation.now_s
    phase = _PHASES.get(kind, Phase.FAILED)
    verdict = make_job_verdict(
        observation.plan, kind, message, at_s=at_s, attempt=status.attempt, node=node
    )
    hint = _KEEP if kind is FailureKind.UNKNOWN else hint
    verdict = replace(verdict, next=hint or verdict.next)
    condition = Condition(type=phase.value, reason=verdict.reason, message=message, since_s=at_s)
    return replace(
        status,
        phase=phase,
        verdict=verdict,
        ended_at_s=at_s,
        ranks=status.lose_ranks(),
        conditions=(*status.conditions, condition),
    )

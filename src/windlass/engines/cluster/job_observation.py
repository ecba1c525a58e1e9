"""One frozen observation of a job on a cluster, from which `job_rules` derives its status.

It contains the lead's reported status, the objects on the API server, and facts about this client's
connection and requests. `ClusterJob` takes the observation and passes it to `job_rules`. Only
`Outage` is kept between observations. This module performs no I/O.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from windlass import names
from windlass.engines.dialects.dialect import Dialect, ObjectEnd
from windlass.errors import EngineError
from windlass.kube.client.api_errors import ClusterError
from windlass.kube.diagnosis.blocker import Blocker
from windlass.kube.diagnosis.pod_endings import DeadPod, PodIndexes
from windlass.kube.objects.fields import Object, container_of, name_of, read_time
from windlass.plan.plan import Plan
from windlass.wire.status import Condition, JobStatus

_MAX_NOTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSnapshot:
    """Snapshot of a job's objects, as its watch knows them."""

    is_listed: bool  # both first lists are complete
    job: Object | None = None  # the main object, or None once it is deleted
    end: ObjectEnd | None = None
    was_completed: bool = False  # an earlier snapshot showed the object as complete
    pods: tuple[Object, ...] = ()
    gone_pods: tuple[Object, ...] = ()
    leads: tuple[Object, ...] = ()  # pods that are or were node 0, oldest first
    running_leads: tuple[Object, ...] = ()  # one at most, unless pods are forged
    error: ClusterError | None = None  # the error that ended a watch, permanent errors first
    outage: ClusterError | None = None  # the error that keeps changes from arriving now

    @property
    def all_pods(self) -> tuple[Object, ...]:
        """Deleted pods, then existing ones."""
        return (*self.gone_pods, *self.pods)

    @property
    def lead(self) -> str:
        """Name of node 0's newest running pod, or an empty string."""
        return name_of(self.running_leads[-1]) if self.running_leads else ""

    @property
    def has_completed(self) -> bool:
        """True if the agents exited normally, which they only do after their job has ended."""
        if self.running_leads:  # the exit belongs to an earlier lead
            return False
        code = self._last_exit.get("exitCode")
        return self.was_completed or code in (0, names.EXIT_FAILED_WORK)

    @property
    def has_ended(self) -> bool:
        """True if no agent will report anything more."""
        # some objects end when any pod exits, although their lead is still running
        return (self.end is not None or self.has_completed) and not self.running_leads

    @property
    def ended_at_s(self) -> float | None:
        """Time of the end by the cluster's clock, or None if the cluster has not recorded it."""
        times = (self.end.at_s if self.end else None, read_time(self._last_exit.get("finishedAt")))
        return min((at_s for at_s in times if at_s), default=None)

    @property
    def failure(self) -> str:
        """Kubernetes' message about the object's failure, or an empty string."""
        return self.end.message if self.end is not None and not self.end.is_complete else ""

    @property
    def _last_exit(self) -> Object:
        """Terminated state of the last lead's container, or an empty object."""
        state = container_of(self.leads[-1]).get("state", {}) if self.leads else {}
        return state.get("terminated") or {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionFacts:
    """State of this client's connection to the lead."""

    is_up: bool = False
    is_synced: bool = False  # a status has arrived
    forbidden: EngineError | None = None  # this user may not reach the lead
    unreachable: ClusterError | None = None  # the API server does not answer
    expired: EngineError | None = None  # the job's certificates are not valid
    cannot_keep: EngineError | None = None  # the job's folder on this machine cannot be written


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFacts:
    """This client's requests and past actions."""

    cancelled_for_s: float | None = None  # seconds since it asked the lead to cancel
    cancelled_why: str = ""
    is_visit: bool = False  # it did not submit the job, and needs an answer quickly
    start_timeout_s: float | None = None
    has_leftovers: bool = False  # the logs of ended pods have been read


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundBlockers:
    """Reasons why a job does not start, most important first."""

    conditions: tuple[Condition, ...] = ()
    unstartable: Blocker | None = None  # its image lacks the interpreter


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEndings:
    """Pods that ended with a failure, oldest first, and the last log line of the newest one."""

    dead: tuple[DeadPod, ...] = ()
    last_line: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """All facts about a job that the rules may use, at one moment."""

    plan: Plan
    dialect: Dialect
    indexes: PodIndexes
    now_s: float
    status: JobStatus  # the last status that the lead reported, or the initial status
    watch: JobSnapshot
    connection: ConnectionFacts
    client: ClientFacts
    # facts that cost requests: None until a rule asks for them
    blockers: FoundBlockers | None = None
    endings: PodEndings | None = None
    num_pods_made: int | None = None

    @property
    def api_error(self) -> ClusterError | None:
        """Error of an unreachable API server. None while the connection to the lead is open."""
        return None if self.connection.is_up else self.connection.unreachable or self.watch.outage

    @property
    def watch_failure(self) -> ClusterError | None:
        """Error of a watch that failed permanently while the lead is unreachable."""
        error = self.watch.error
        return None if error is None or error.retryable or self.connection.is_up else error

    @property
    def ended_at_s(self) -> float:
        return self.watch.ended_at_s or self.now_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """History of one outage: when it started, and what was reported about it."""

    away: str  # the reason of the condition that reports the outage
    back: str  # the reason of the condition that reports its end
    over: str  # the message of that condition
    report_after_s: float
    since_s: float | None = None
    is_reported: bool = False
    notes: tuple[Condition, ...] = ()

    def update(self, trouble: str, now_s: float) -> Outage:
        """Return the history with the current problem. An empty string means that there is none."""
        if trouble:
            since_s = self.since_s or now_s
            if self.is_reported or now_s - since_s < self.report_after_s:
                return replace(self, since_s=since_s)
            notes = self._add_note(self.away, trouble, since_s)
            return replace(self, since_s=since_s, is_reported=True, notes=notes)
        if self.since_s is None or not self.is_reported:
            return replace(self, since_s=None)
        notes = self._add_note(self.back, f"{self.over} after {now_s - self.since_s:.0f} s", now_s)
        return replace(self, since_s=None, is_reported=False, notes=notes)

    def _add_note(self, reason: str, message: str, since_s: float) -> tuple[Condition, ...]:
        note = Condition(type="warning", reason=reason, message=message, since_s=since_s)
        return (*self.notes, note)[-_MAX_NOTES:]


def describe_api_outage(observation: Observation) -> str:
    """Return why the API server is unreachable, or an empty string."""
    error = observation.api_error
    return f"{error.message}; the job continues, and this client keeps trying" if error else ""


def describe_disk_outage(observation: Observation) -> str:
    """Return why the job's folder cannot be written, or an empty string."""
    error = observation.connection.cannot_keep
    return f"{error.message}; {error.hint}; this client keeps trying" if error else ""

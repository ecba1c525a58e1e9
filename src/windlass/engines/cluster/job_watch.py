"""Watch of one job's objects on the API server, and what follows from it: blockers, unreachable pods.

`JobWatch` watches the main object and its pods, and reads events when asked. Pods that are gone are
remembered, because only they tell why a node was lost. Anybody may give a pod the job's labels:
only those that belong to its main object are seen. Two threads wait out an API server that is away.
`JobBlockers` says what keeps the job from starting, and `UnreachablePods` ends pods on machines
that do not answer, where the kind replaces only a pod that has ended. What objects mean is up to
the dialect and `kube`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from windlass import names
from windlass.engines.cluster.lead_pods import runs
from windlass.engines.dialects.dialect import Dialect, ObjectEnd
from windlass.kube.client.access import may
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound
from windlass.kube.diagnosis.blocker import (
    NOT_ADMITTED,
    OPERATOR_IDLE,
    START_ERROR,
    VOLUME,
    Blocker,
    make_condition,
)
from windlass.kube.diagnosis.job_admission import IDLE_S
from windlass.kube.diagnosis.pod_endings import is_taken_with_its_node
from windlass.kube.objects.fields import (
    Object,
    condition_of,
    container_of,
    created_s,
    deleted_s,
    events_of,
    is_true,
    log_container_of,
    name_of,
    read_time,
    slim_any,
    slim_node,
    slim_pod,
    uid_of,
)
from windlass.kube.objects.kinds import EVENTS, NODES, PODS, PVCS, RESOURCE_QUOTAS, ObjectKind
from windlass.wire.status import Condition, cut_text

logger = logging.getLogger(__name__)

WatchedObject = dict[str, Any]

_KEPT = {PODS: slim_pod, NODES: slim_node}
_MAX_READ = 8  # last lines of pods: they mostly say the same
_LINE_S = 2.0
_KUEUE = "kueue.x-k8s.io"
_NEEDED = (EVENTS, RESOURCE_QUOTAS, PVCS)  # the Role has them
PATIENCE_S = 1.0  # a job that is younger is not called blocked, and none is asked about more often
_BINDING_S = 10.0
_EVERY_S = 2.0
_OVERDUE_S = 5.0  # a machine that answers ends a pod within its grace


class JobWatch:
    """One job, as far as the API server knows it."""

    def __init__(
        self, api: Api, dialect: Dialect, job_id: str, pod_labels: Mapping[str, str] | None = None
    ) -> None:
        self._api = api
        self._dialect = dialect
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._job: WatchedObject | None = None
        self._job_uid = ""  # also once it is gone
        self._distrusted: set[str] = set()  # pods by uid
        self._pods: dict[str, WatchedObject] = {}
        self._gone: dict[str, WatchedObject] = {}
        self._others: dict[ObjectKind, tuple[float, list[WatchedObject]]] = {}
        self._forbidden: set[ObjectKind] = set()
        self._is_here = {"job": threading.Event(), "pods": threading.Event()}
        self._errors: dict[str, ClusterError] = {}
        self._away: ClusterError | None = None
        self._was_completed = False
        field = f"metadata.name={dialect.make_name(job_id)}"
        labels = {names.LABEL_JOB: job_id} if pod_labels is None else pod_labels
        label = ",".join(f"{name}={value}" for name, value in labels.items())
        self._start("job", dialect.kind, self._see_job, "", field)
        self._start("pods", PODS, self._see_pod, label, "")  # of which there may be a thousand

    def _start(self, what: str, kind: ObjectKind, see: Any, labels: str, fields: str) -> None:
        def watch() -> None:
            watched = self._api.watch(
                kind, labels=labels, fields=fields, stop=self._stop, told=self._note_away,
                keep=_KEPT.get(kind, slim_any),
            )  # fmt: skip
            for event, thing in watched:
                if event == "SYNCED":
                    self._errors.pop(what, None)
                    self._is_here[what].set()
                else:
                    with self._lock:
                        see(event, thing)

        def keep_watching() -> None:
            while not self._stop.is_set():
                try:
                    watch()
                except ClusterError as error:
                    self._errors[what] = error
                    if not error.retryable:
                        break
                finally:
                    self._is_here[what].set()

        threading.Thread(target=keep_watching, name=f"windlass-watch-{what}", daemon=True).start()

    def _note_away(self, error: ClusterError | None) -> None:
        self._away = error

    def _see_job(self, event: str, job: WatchedObject) -> None:
        end = self._dialect.read_end(job)
        self._was_completed |= end is not None and end.is_complete
        self._job, self._job_uid = None if event == "DELETED" else job, uid_of(job)

    def _see_pod(self, event: str, pod: WatchedObject) -> None:
        if event == "DELETED":
            self._pods.pop(name_of(pod), None)
            self._gone[name_of(pod)] = pod
        else:
            self._pods[name_of(pod)] = pod

    def wait(self, timeout_s: float) -> bool:
        """Until the first look is complete."""
        end_s = time.monotonic() + timeout_s
        return all(here.wait(max(0.0, end_s - time.monotonic())) for here in self._is_here.values())

    def close(self) -> None:
        self._stop.set()

    @property
    def error(self) -> ClusterError | None:
        """Why it is not seen; one that no later try can cure comes first."""
        errors = sorted(self._errors.copy().values(), key=lambda error: error.retryable)
        return errors[0] if errors else None

    @property
    def away(self) -> ClusterError | None:
        """Why nothing new is seen for now; what is known is what was seen before."""
        return self._away or self.error

    @property
    def job(self) -> WatchedObject | None:
        with self._lock:
            return self._job

    @property
    def pods(self) -> list[WatchedObject]:
        with self._lock:
            return [pod for pod in self._pods.values() if self._is_own(pod)]

    @property
    def all_pods(self) -> list[WatchedObject]:
        """Also those that are gone."""
        with self._lock:
            known = (*self._gone.values(), *self._pods.values())
            return [pod for pod in known if self._is_own(pod)]

    def _is_own(self, pod: WatchedObject) -> bool:
        return self._dialect.owns(pod, self._job_uid) and uid_of(pod) not in self._distrusted

    def distrust(self, uid: str) -> None:
        """See no more of a pod that was found not to be what it says it is."""
        with self._lock:
            self._distrusted.add(uid)

    @property
    def has_ended(self) -> bool:
        """Whether no agent will say anything more: the object is over, or its lead has left in peace."""
        # what ends by the exit of any pod may do so before its lead has left its word
        is_over = self._read_end() is not None or self.has_completed
        return is_over and not self.find_leads()

    def _read_end(self) -> ObjectEnd | None:
        job = self.job
        return None if job is None else self._dialect.read_end(job)

    @property
    def has_completed(self) -> bool:
        """Whether agents left in peace, which they do when their job has ended, and only then."""
        if self.find_leads():  # while one runs, one that left cannot have been the last
            return False
        if self._was_completed:
            return True
        lead = self._find_last_lead()
        left = container_of(lead).get("state", {}).get("terminated") if lead else None
        return left is not None and left.get("exitCode") in (0, names.EXIT_FAILED_WORK)

    @property
    def ended_at_s(self) -> float:
        """When that was, by the cluster's clock; now, where it does not say."""
        end, lead = self._read_end(), self._find_last_lead()
        times = [end.at_s if end else None]
        if lead is not None:
            left = container_of(lead).get("state", {}).get("terminated") or {}
            times.append(read_time(left.get("finishedAt")))
        return min((at_s for at_s in times if at_s), default=time.time())

    def describe_failure(self) -> str:
        """Why Kubernetes calls it failed, in its own words."""
        end = self._read_end()
        return end.message if end is not None and not end.is_complete else ""

    def find_lead(self) -> str | None:
        """The name of node 0's newest pod whose container runs."""
        leads = self.find_leads()
        return name_of(leads[-1]) if leads else None

    def find_leads(self) -> list[WatchedObject]:
        """All pods of node 0 whose containers run, oldest first: there is one, unless somebody cheats."""
        return [pod for pod in self.list_leads() if runs(pod)]

    def _find_last_lead(self) -> WatchedObject | None:
        leads = self.list_leads()
        return leads[-1] if leads else None

    def list_leads(self) -> list[WatchedObject]:
        """All pods that are or were node 0, oldest first."""
        leads = [pod for pod in self.pods if self._dialect.index_of(pod) == 0]
        return sorted(leads, key=lambda pod: str(pod["metadata"].get("creationTimestamp")))

    def read_events(self, max_age_s: float = 1.0) -> list[WatchedObject]:
        """Events of the namespace, at most a second old; none where they may not be read."""
        return self._read(EVENTS, max_age_s=max_age_s)

    def was_made_again(self, reason: str, *, is_visit: bool) -> bool:
        """Whether the only pod of a job is not its first: this client saw another go, or events tell it."""
        was_seen = len({uid_of(pod) for pod in self.all_pods}) > 1
        if was_seen or not is_visit or self.job is None:
            return was_seen
        kind, name = self._dialect.find_pod_maker(self.job)
        made = events_of(self.read_events(max_age_s=30.0), kind, name, reason)
        return sum(int(event.get("count") or 1) for event in made) > 1

    def read_around(self) -> tuple[list[WatchedObject], list[WatchedObject], list[WatchedObject]]:
        """Quotas and claims of the namespace, and the cluster's nodes, as far as they may be read."""
        quotas, claims, nodes = (
            self._read(kind, max_age_s=10.0) for kind in (RESOURCE_QUOTAS, PVCS, NODES)
        )
        return quotas, claims, nodes

    def read_queues(self) -> list[str] | None:
        """The names of the namespace's Kueue queues; None where they may not be read."""
        try:
            group = self._api.request("GET", f"/apis/{_KUEUE}")
        except NotFound:
            return []
        except ClusterError as error:
            logger.debug("%s: %s", _KUEUE, error)
            return None
        version = str(group["preferredVersion"]["groupVersion"])
        kind = ObjectKind(version, "localqueues", "LocalQueue")
        queues = self._read(kind, max_age_s=10.0)
        return None if kind in self._forbidden else [name_of(queue) for queue in queues]

    def failed(self) -> list[str]:
        """The names of the newest pods that have failed."""
        failed = [pod for pod in self.pods if pod["status"].get("phase") == "Failed"]
        failed.sort(key=created_s, reverse=True)
        return [name_of(pod) for pod in failed[:_MAX_READ]]

    def read_last_lines(self) -> dict[str, str]:
        """What pods that have failed said last, as far as their nodes answer in a moment."""
        end_s = time.monotonic() + _LINE_S
        return {pod: self.read_last_line(pod) for pod in self.failed() if time.monotonic() < end_s}

    def read_last_line(self, pod: str) -> str:
        """What a pod said last; nothing where that is not known."""
        try:
            lines = self._api.read_log(
                pod,
                container=log_container_of(self._pods.get(pod, {}), self._dialect.container),
                tail_lines=1,
                timeout_s=_LINE_S,
                is_patient=False,
            )
        except ClusterError:
            return ""
        return cut_text(lines.decode(errors="replace").strip(), 300)

    def _read(self, kind: ObjectKind, *, max_age_s: float) -> list[WatchedObject]:
        read_s, bodies = self._others.get(kind, (-max_age_s, []))
        if kind in self._forbidden or time.monotonic() - read_s < max_age_s:
            return bodies
        try:
            bodies = self._list(kind)
        except Forbidden:
            self._forbidden.add(kind)
        except ClusterError as error:
            logger.debug("%s: %s", kind.plural, error)
        self._others[kind] = (time.monotonic(), bodies)
        return bodies

    def _list(self, kind: ObjectKind) -> list[WatchedObject]:
        """What no job needs is asked for only by those who may: a refusal would stand in the audit log."""
        place = self._api.namespace if kind.namespaced else ""
        if kind in _NEEDED or may(
            self._api, "list", kind.plural, group=kind.group, namespace=place
        ):
            return self._api.list(kind, keep=_KEPT.get(kind, slim_any))
        self._forbidden.add(kind)
        return []


class JobBlockers:
    """Of one job, as they were found last."""

    def __init__(self, dialect: Dialect, watch: JobWatch) -> None:
        self._dialect = dialect
        self._watch = watch
        self._looked_s = -PATIENCE_S
        self._conditions: tuple[Condition, ...] = ()
        self.unstartable: Blocker | None = None  # its image lacks the interpreter

    def look(self) -> tuple[Condition, ...]:
        """What blocks it, as conditions, most important first."""
        if self._watch.job is None:
            return ()
        if time.monotonic() - self._looked_s >= PATIENCE_S:
            self._looked_s = time.monotonic()
            blockers = [blocker for blocker in self._find() if not _is_young(blocker)]
            self.unstartable = next((one for one in blockers if one.reason == START_ERROR), None)
            self._conditions = tuple(make_condition(blocker) for blocker in blockers)
        return self._conditions

    def _find(self) -> list[Blocker]:
        job, pods, events = self._watch.job or {}, self._watch.pods, self._watch.read_events()
        blockers = self._dialect.find_blockers(job, pods, events)
        if not blockers:
            return []
        # now it is worth asking for what makes the sentences more exact
        quotas, claims, nodes = self._watch.read_around()
        is_queued = blockers[0].reason == NOT_ADMITTED
        return self._dialect.find_blockers(
            job,
            pods,
            events,
            quotas,
            claims=claims,
            nodes=nodes,
            queues=self._watch.read_queues() if is_queued else None,
            last_lines=self._watch.read_last_lines(),
        )


def _is_young(blocker: Blocker) -> bool:
    """A claim that was just made is bound in a moment, if it can be; pods are made in a moment."""
    is_unbound = blocker.reason == VOLUME and "is not bound" in blocker.message
    patience_s = _BINDING_S if is_unbound else IDLE_S if blocker.reason == OPERATOR_IDLE else 0.0
    return time.time() - blocker.since_s < patience_s


class UnreachablePods:
    """Of one job; ended whenever somebody looks."""

    def __init__(self, api: Api, dialect: Dialect, watch: JobWatch) -> None:
        self._api = api
        self._end_status = dialect.end_lost_pod
        self._watch = watch
        self._looked_s = -_EVERY_S
        self._may = True

    def end(self) -> None:
        """End those that are there, so that others are made."""
        if self._end_status is None or not self._may or self._watch.away is not None:
            return
        if time.monotonic() - self._looked_s < _EVERY_S:
            return
        self._looked_s = time.monotonic()
        taken = [pod for pod in self._watch.pods if is_taken_with_its_node(pod)]
        for pod in taken:
            if self._is_unreachable(pod):
                self._end(pod)

    def _is_unreachable(self, pod: Object) -> bool:
        """By its node, where that may be read; else by its grace, which is over."""
        _, _, nodes = self._watch.read_around()
        for node in nodes:
            if name_of(node) == pod["spec"].get("nodeName"):
                return not is_true(condition_of(node, "Ready"))
        return time.time() > (deleted_s(pod) or time.time()) + _OVERDUE_S

    def _end(self, pod: Object) -> None:
        try:
            if self._end_status:
                self._api.patch(PODS, name_of(pod), self._end_status, part="status", brief=True)
            self._api.delete(PODS, name_of(pod), uid=uid_of(pod), grace_s=0)
        except Forbidden as error:
            self._may = False
            logger.debug("%s stays until its machine is back: %s", name_of(pod), error)
        except ClusterError as error:
            logger.debug("%s is not ended yet: %s", name_of(pod), error)

"""Watch of one job's objects on the API server, and the requests that depend on it.

`JobWatch` watches the main object and its pods in two threads, and reads other objects on request.
It keeps deleted pods, because only they show why a node was lost. Other users can give a pod the
job's labels, so only pods that the main object owns count. `JobBlockers` reads what keeps the job
from starting, and `UnreachablePods` ends pods on machines that do not answer. The dialect and
`kube` interpret the objects.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from windlass import names
from windlass.engines.cluster.job_observation import FoundBlockers, JobSnapshot
from windlass.engines.cluster.lead_pods import runs
from windlass.engines.dialects.dialect import Dialect
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
from windlass.kube.diagnosis.pod_endings import is_deleted_with_its_node
from windlass.kube.objects.fields import (
    Object,
    WatchedObject,
    condition_of,
    created_s,
    deleted_s,
    events_of,
    is_true,
    log_container_of,
    name_of,
    slim_any,
    slim_node,
    slim_pod,
    uid_of,
)
from windlass.kube.objects.kinds import EVENTS, NODES, PODS, PVCS, RESOURCE_QUOTAS, ObjectKind
from windlass.wire.status import cut_text

logger = logging.getLogger(__name__)

_KEPT = {PODS: slim_pod, NODES: slim_node}
_MAX_READ = 8  # number of pods whose last lines are read, because most last lines are equal
_LINE_S = 2.0
_KUEUE = "kueue.x-k8s.io"
_NEEDED = (EVENTS, RESOURCE_QUOTAS, PVCS)  # the documented Role grants access to these
_BLOCKERS_EVERY_S = 1.0
_BINDING_S = 10.0
_CHECK_EVERY_S = 2.0
_OVERDUE_S = 5.0  # machines that answer end a pod within its grace period


class JobWatch:
    """Watched objects of one job."""

    def __init__(
        self, api: Api, dialect: Dialect, job_id: str, pod_labels: Mapping[str, str] | None = None
    ) -> None:
        self._api = api
        self._dialect = dialect
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self._job: WatchedObject | None = None
        self._job_uid = ""  # kept after its deletion
        self._distrusted: set[str] = set()  # UIDs of pods
        self._pods: dict[str, WatchedObject] = {}
        self._gone: dict[str, WatchedObject] = {}
        self._lists: dict[ObjectKind, tuple[float, list[WatchedObject]]] = {}
        self._forbidden: set[ObjectKind] = set()
        self._is_listed = {"job": threading.Event(), "pods": threading.Event()}
        self._errors: dict[str, ClusterError] = {}
        self._outage: ClusterError | None = None
        self._was_completed = False
        field = f"metadata.name={dialect.make_name(job_id)}"
        labels = {names.LABEL_JOB: job_id} if pod_labels is None else pod_labels
        label = ",".join(f"{name}={value}" for name, value in labels.items())
        self._start("job", dialect.kind, self._on_job, "", field)
        self._start("pods", PODS, self._on_pod, label, "")  # possibly a thousand of them

    def _start(self, what: str, kind: ObjectKind, on_change: Any, labels: str, fields: str) -> None:
        def watch() -> None:
            watched = self._api.watch(
                kind, labels=labels, fields=fields, stop=self._stop, on_outage=self._note_outage,
                keep=_KEPT.get(kind, slim_any),
            )  # fmt: skip
            for event, thing in watched:
                if event == "SYNCED":
                    self._errors.pop(what, None)
                    self._is_listed[what].set()
                else:
                    with self._lock:
                        on_change(event, thing)

        def keep_watching() -> None:
            while not self._stop.is_set():
                try:
                    watch()
                except ClusterError as error:
                    self._errors[what] = error
                    self._is_listed[what].set()
                    if not error.retryable:
                        break

        threading.Thread(target=keep_watching, name=f"windlass-watch-{what}", daemon=True).start()

    def _note_outage(self, error: ClusterError | None) -> None:
        self._outage = error

    def _on_job(self, event: str, job: WatchedObject) -> None:
        end = self._dialect.read_end(job)
        self._was_completed |= end is not None and end.is_complete
        self._job, self._job_uid = None if event == "DELETED" else job, uid_of(job)

    def _on_pod(self, event: str, pod: WatchedObject) -> None:
        if event == "DELETED":
            self._pods.pop(name_of(pod), None)
            self._gone[name_of(pod)] = pod
        else:
            self._pods[name_of(pod)] = pod

    def wait(self, timeout_s: float) -> bool:
        """Wait for the first lists of both watches, or for their errors. Return False on a timeout."""
        end_s = time.monotonic() + timeout_s
        return all(
            listed.wait(max(0.0, end_s - time.monotonic())) for listed in self._is_listed.values()
        )

    def close(self) -> None:
        self._stop.set()

    @property
    def job(self) -> WatchedObject | None:
        with self._lock:
            return self._job

    @property
    def pods(self) -> list[WatchedObject]:
        with self._lock:
            return [pod for pod in self._pods.values() if self._is_own(pod)]

    def _is_own(self, pod: WatchedObject) -> bool:
        return self._dialect.owns(pod, self._job_uid) and uid_of(pod) not in self._distrusted

    def distrust(self, uid: str) -> None:
        """Ignore a pod that only pretends to belong to the job."""
        with self._lock:
            self._distrusted.add(uid)

    def snapshot(self) -> JobSnapshot:
        """Return the current state of the watched objects."""
        index_of, read_end = self._dialect.index_of, self._dialect.read_end
        # Read this before the objects. They are complete if it is set and there is no error.
        is_listed = self.wait(0)
        errors = sorted(self._errors.copy().values(), key=lambda error: error.retryable)
        error = errors[0] if errors else None
        with self._lock:
            job, was_completed = self._job, self._was_completed
            pods = tuple(pod for pod in self._pods.values() if self._is_own(pod))
            gone_pods = tuple(pod for pod in self._gone.values() if self._is_own(pod))
        leads = [pod for pod in pods if index_of(pod) == 0]
        leads.sort(key=lambda pod: str(pod["metadata"].get("creationTimestamp")))
        return JobSnapshot(
            is_listed=is_listed,
            job=job,
            end=None if job is None else read_end(job),
            was_completed=was_completed,
            pods=pods,
            gone_pods=gone_pods,
            leads=tuple(leads),
            running_leads=tuple(pod for pod in leads if runs(pod)),
            error=error,
            outage=self._outage or error,
        )

    def find_leads(self) -> Sequence[Object]:
        """Return the pods of node 0 whose containers run, oldest first."""
        return self.snapshot().running_leads

    def read_events(self, max_age_s: float = 1.0) -> list[WatchedObject]:
        """Return events of the namespace, at most `max_age_s` old, or [] if the user may not read them."""
        return self._read(EVENTS, max_age_s=max_age_s)

    def count_pods_made(self, reason: str) -> int:
        """Return the number of new pods in events with this reason. It may be 30 s out of date."""
        if (job := self.job) is None:
            return 0
        kind, name = self._dialect.find_pod_maker(job)
        made = events_of(self.read_events(max_age_s=30.0), kind, name, reason)
        return sum(int(event.get("count") or 1) for event in made)

    def read_around(self) -> tuple[list[WatchedObject], list[WatchedObject], list[WatchedObject]]:
        """Return the namespace's quotas and claims, and the cluster's nodes, as far as they are readable."""
        quotas, claims, nodes = (
            self._read(kind, max_age_s=10.0) for kind in (RESOURCE_QUOTAS, PVCS, NODES)
        )
        return quotas, claims, nodes

    def read_queues(self) -> list[str] | None:
        """Return the names of the namespace's Kueue queues, or None if the user may not read them."""
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

    def read_last_lines(self) -> dict[str, str]:
        """Return the last log lines of the newest failed pods whose nodes answer in time."""
        end_s = time.monotonic() + _LINE_S
        failed = [pod for pod in self.pods if pod["status"].get("phase") == "Failed"]
        failed.sort(key=created_s, reverse=True)
        newest = map(name_of, failed[:_MAX_READ])
        return {pod: self.read_last_line(pod) for pod in newest if time.monotonic() < end_s}

    def read_last_line(self, pod: str) -> str:
        """Return the last line in the log of a pod, or an empty string if it cannot be read."""
        try:
            lines = self._api.read_log(
                pod,
                container=log_container_of(self._pods.get(pod, {}), self._dialect.container),
                tail_lines=1,
                timeout_s=_LINE_S,
                is_retried=False,
            )
        except ClusterError:
            return ""
        return cut_text(lines.decode(errors="replace").strip(), 300)

    def _read(self, kind: ObjectKind, *, max_age_s: float) -> list[WatchedObject]:
        read_s, bodies = self._lists.get(kind, (-max_age_s, []))
        if kind in self._forbidden or time.monotonic() - read_s < max_age_s:
            return bodies
        try:
            bodies = self._list(kind)
        except Forbidden:
            self._forbidden.add(kind)
        except ClusterError as error:
            logger.debug("%s: %s", kind.plural, error)
        self._lists[kind] = (time.monotonic(), bodies)
        return bodies

    def _list(self, kind: ObjectKind) -> list[WatchedObject]:
        """List objects. Check the right to list optional kinds first: refusals would fill the audit log."""
        place = self._api.namespace if kind.namespaced else ""
        if kind in _NEEDED or may(
            self._api, "list", kind.plural, group=kind.group, namespace=place
        ):
            return self._api.list(kind, keep=_KEPT.get(kind, slim_any))
        self._forbidden.add(kind)
        return []


class JobBlockers:
    """Blockers of one job, read at most once a second."""

    def __init__(self, dialect: Dialect, watch: JobWatch) -> None:
        self._dialect = dialect
        self._watch = watch
        self._read_s = -_BLOCKERS_EVERY_S
        self._blockers = FoundBlockers()

    def read(self) -> FoundBlockers:
        """Return the blockers of the job, from events and pods up to a second old."""
        if self._watch.job is None:
            return FoundBlockers()
        if time.monotonic() - self._read_s >= _BLOCKERS_EVERY_S:
            self._read_s = time.monotonic()
            blockers = [blocker for blocker in self._find() if not _is_young(blocker)]
            self._blockers = FoundBlockers(
                conditions=tuple(make_condition(blocker) for blocker in blockers),
                unstartable=next((one for one in blockers if one.reason == START_ERROR), None),
            )
        return self._blockers

    def _find(self) -> list[Blocker]:
        job, pods, events = self._watch.job or {}, self._watch.pods, self._watch.read_events()
        blockers = self._dialect.find_blockers(job, pods, events)
        if not blockers:
            return []
        # There is a blocker, so requests for a more precise message are worthwhile.
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
    """Return whether the blocker is too new to report, because claims and pods need some time."""
    is_unbound = blocker.reason == VOLUME and "is not bound" in blocker.message
    grace_s = _BINDING_S if is_unbound else IDLE_S if blocker.reason == OPERATOR_IDLE else 0.0
    return time.time() - blocker.since_s < grace_s


class UnreachablePods:
    """Pods of one job on machines that do not answer. Their kind replaces only pods that have ended."""

    def __init__(self, api: Api, dialect: Dialect, watch: JobWatch) -> None:
        self._api = api
        self._end_status = dialect.end_lost_pod
        self._watch = watch
        self._checked_s = -_CHECK_EVERY_S
        self._is_allowed = True

    def end(self) -> None:
        """End the unreachable pods, so that they are replaced. Checks at most every two seconds."""
        if not self._is_allowed or time.monotonic() - self._checked_s < _CHECK_EVERY_S:
            return
        self._checked_s = time.monotonic()
        for pod in self._watch.pods:
            if is_deleted_with_its_node(pod) and self._is_unreachable(pod):
                self._end(pod)

    def _is_unreachable(self, pod: Object) -> bool:
        """Return whether the pod's node is not ready. If nodes are unreadable, check the grace period."""
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
            self._is_allowed = False
            logger.debug("%s stays until its machine is back: %s", name_of(pod), error)
        except ClusterError as error:
            logger.debug("%s is not ended yet: %s", name_of(pod), error)

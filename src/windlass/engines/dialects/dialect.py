"""Dialects: descriptions of the Kubernetes object kinds that can run a job's nodes.

A dialect is a record of data and pure functions. Nothing else in the project depends on the kind.
`engines.cluster.cluster_engine` talks to the cluster for all dialects, and `engines.engine_table` lists them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from windlass import names
from windlass.kube.client.access import Need, Right, make_rights
from windlass.kube.objects.fields import (
    Object,
    condition_of,
    created_s,
    event_last_s,
    is_controlled_by,
    is_true,
    labels_of,
    name_of,
    read_index,
    read_time,
)
from windlass.kube.objects.kinds import ObjectKind
from windlass.kube.objects.manifests import FileNames, make_metadata, pod_of
from windlass.kube.objects.naming import make_annotations
from windlass.plan.plan import Plan

if TYPE_CHECKING:
    from windlass.kube.diagnosis.blocker import Blocker
    from windlass.spec.pod_spec import PodSize

Patch = dict[str, Any]

LABEL_JOB_INDEX = "batch.kubernetes.io/job-completion-index"  # set on pods of an Indexed Job
JOB_FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"  # likewise
_DAY_S = 86400
_MAX_INT32 = (1 << 31) - 1


class ObjectPhase(Enum):
    """Progress of a main object, as its own fields report it."""

    HELD = "held"  # not allowed to have pods yet
    WAITING = "waiting"  # none of its pods has run yet
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEnd:
    """End of a main object: whether its agents completed, when it ended, and its own message on a failure."""

    is_complete: bool
    at_s: float | None = None
    message: str = ""


class ReadHold(Protocol):
    """Function that returns why an object may not have pods yet, or None if it may."""

    def __call__(
        self,
        body: Object,
        /,
        *,
        events: Sequence[Object],
        queues: Sequence[str] | None,
    ) -> Blocker | None: ...


def read_condition_end(body: Object, *, complete: str = "Complete") -> ObjectEnd | None:
    """Return the end of an object from its conditions: `complete` or Failed."""
    for kind in (complete, "Failed"):
        condition = condition_of(body, kind)
        if is_true(condition):
            why = (str(condition[key]) for key in ("reason", "message") if condition.get(key))
            return ObjectEnd(
                is_complete=kind == complete,
                at_s=read_time(condition.get("lastTransitionTime")),
                message=": ".join(why),
            )
    return None


def never_ends(_body: Object) -> None:
    """Return None, for kinds that never end."""


def never_held(
    _body: Object, *, events: Sequence[Object], queues: Sequence[str] | None
) -> Blocker | None:
    """Return None, for kinds whose pods are created immediately."""


def read_ready_phase(body: Object) -> ObjectPhase:
    """Return the phase of an object that only reports its number of ready pods."""
    is_up = body.get("status", {}).get("readyReplicas")
    return ObjectPhase.STARTED if is_up else ObjectPhase.WAITING


def count_replicas(body: Object) -> int:
    """Return the number of pods of an object from its `replicas` field."""
    return int(body.get("spec", {}).get("replicas") or 0)


def make_main_object(
    plan: Plan,
    submit: str,
    kind: ObjectKind,
    spec: Object,
    *,
    name: str = "",
    annotations: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the main object of a job, named by the job's id by default, with its metadata and queue."""
    about = {**make_annotations(plan, submit), **(annotations or {})}
    metadata = make_metadata(plan, name or plan.job_id, annotations=about)
    if queue := pod_of(plan).queue:
        metadata["labels"][names.LABEL_QUEUE] = queue
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, "spec": spec}


def limit_time(plan: Plan) -> dict[str, int]:
    """Return the field that ends a job if its lead fails to end it.

    Kubernetes counts from the start of the first pod, so the limit is much higher than the job's own.
    """
    if plan.timeout_s is None:
        return {}
    limit_s = 2 * math.ceil(plan.timeout_s) + _DAY_S
    return {"activeDeadlineSeconds": min(limit_s, _MAX_INT32)}


def delete_after_ttl(plan: Plan) -> dict[str, int]:
    """Return the field that makes the cluster delete an object some time after it ended."""
    ttl_s = pod_of(plan).ttl_s
    return {} if ttl_s is None else {"ttlSecondsAfterFinished": math.ceil(ttl_s)}


def allow_missing_pods(plan: Plan) -> dict[str, Any]:
    """Return the fields that let an Indexed Job finish even if some pods were never created."""
    if plan.min_nodes == len(plan.nodes):
        return {}
    return {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}}


def read_index_label(label: str) -> Callable[[Object], int | None]:
    """Return a reader of a pod's index from one of its labels."""
    return lambda pod: read_index(labels_of(pod).get(label, ""))


def read_index_in_name(
    form: str, make_name: Callable[[str], str] = str
) -> Callable[[str, str], int | None]:
    """Return a reader of a pod's index from its name.

    `form` is a regular expression with the groups `job`, which is the main object's name, and `index`.
    """
    pattern = re.compile(form)

    def index_in_name(pod: str, job_id: str) -> int | None:
        match = pattern.fullmatch(pod)
        return int(match["index"]) if match and match["job"] == make_name(job_id) else None

    return index_in_name


def is_suspended(body: Object) -> bool:
    """Return whether an object is suspended by its own spec."""
    return bool(body.get("spec", {}).get("suspend"))


def make_hold_reader(prefix: str, is_held: Callable[[Object], bool] = is_suspended) -> ReadHold:
    """Return a function that returns why an object is suspended.

    Its submit may be incomplete, a user may have suspended it, or its queue has not admitted it yet.
    Kueue names the Workloads for objects of this kind with `prefix`.
    """

    def read_hold(
        job: Object,
        *,
        events: Sequence[Object],
        queues: Sequence[str] | None,
    ) -> Blocker | None:
        if not is_held(job):
            return None
        from windlass.kube.diagnosis.job_admission import read_suspension

        return read_suspension(job, events, queues, prefix=prefix)

    return read_hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Prerequisite:
    """Object that the main object refers to by name and that must exist first.

    Windlass makes it from a source object of the cluster. It is named after the job's id, and the main
    object becomes its owner.
    """

    kind: ObjectKind
    sources: tuple[ObjectKind, ...]  # the kinds to search for the source, in order
    source_name: Callable[[Plan], str]
    shipped: Mapping[str, Object]  # sources as their product ships them, for exports
    render: Callable[[Plan, FileNames, str, Object], dict[str, Any]]
    """Makes the object from its source and the arguments of the main object's `render`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """Rules to find the pods of an object that was created with kubectl or the kind's own SDK."""

    pod_labels: Callable[[str], Mapping[str, str]]  # labels of its pods, from its name
    index_of: Callable[[Object, Object], int | None]
    """Index of a pod, from the object and the pod (default: pods are numbered in order of arrival)."""
    owns: Callable[[Object, Object], bool] | None = None
    """True if the object owns a pod (default: the dialect's `owns`)."""
    # returns a likely mistake of its author, as a sentence
    find_author_mistake: Callable[[Object], str] = lambda _body: ""


class MakeWorkers(Protocol):
    """Maker of the object that runs a compute's nodes 1 and up. `owner` refers to the main object."""

    def __call__(
        self,
        plan: Plan,
        files: FileNames,
        /,
        *,
        size: PodSize,
        num_nodes: int,
        owner: dict[str, Any],
    ) -> dict[str, Any]: ...


Regroup = Callable[[Plan, Object, int, "PodSize | None"], Patch]
"""Makes the patch that resizes a compute's main object.

The arguments are the plan, the main object, the number of nodes, and the size of nodes 1 and up.
Without a size the workers stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """Description of how an engine runs jobs as one kind of Kubernetes object.

    The main object is created first and owns all others. Deleting it therefore deletes the others too, so a
    failed submission leaves nothing behind. An object whose dialect has `start` is created suspended, and
    started once all other objects exist. Without `start`, the pods wait until the job's Secret exists,
    because they mount it.
    """

    name: str  # the engine's name
    kind: ObjectKind
    make_name: Callable[[str], str] = str  # makes the main object's name from the job id
    can: frozenset[str]
    needs: tuple[Need, ...] = ()  # kinds that not every cluster serves
    newer_fields: Mapping[str, Patch] = field(default_factory=dict)
    """Optional fields that older operators reject, each with the patch that leaves it out."""
    more_rights: tuple[Right, ...] = ()  # in addition to those on the kind itself
    operator: str = ""  # product that creates the pods, if Kubernetes itself does not
    prerequisite: Prerequisite | None = None

    render: Callable[[Plan, FileNames, str], dict[str, Any]]
    """Makes the main object from a plan, the names of its files, and the mark of its submit."""
    start: Patch | None = None  # starts a held object and resumes a suspended one
    suspend: Patch | None = None
    resize: Callable[[int], Patch] | None = None
    regroup: Regroup | None = None  # replaces `resize` for kinds with groups of pods
    make_workers: MakeWorkers | None = None
    """For kinds with identical pods: makes a second object of the kind, for nodes of another size.
    The main object owns it, and it is resized in the same way."""
    give_up: Patch | None = None  # makes the next failed pod fail the object ({}: it always does)
    end_lost_pod: Patch | None = None
    """For kinds that replace only ended pods: the status to set on a lost machine's pod before its deletion.
    An empty patch means that deleting the pod is enough. None means that the kind always replaces it."""
    stays_up: bool = False  # it never ends, and restarts its containers

    read_end: Callable[[Object], ObjectEnd | None] = never_ends
    read_phase: Callable[[Object], ObjectPhase]
    num_pods: Callable[[Object], int] = count_replicas
    read_hold: ReadHold = never_held
    pod_made: str = ""
    """Reason of the event that reports a new pod, for kinds where a pod cannot know how many were lost before
    it."""
    pod_maker: Callable[[Object], tuple[str, str]] | None = None
    """Kind and name of the maker of the pods, as in events (default: the main object itself)."""

    lead_labels: Mapping[str, str]  # only the lead's pod has them among its job's pods
    compute_lead_labels: Callable[[str], Mapping[str, str]] = lambda _job_id: {}
    """Further labels of the lead, from the job id, where a compute's workers may share `lead_labels`."""
    index_of: Callable[[Object], int | None]
    index_in_name: Callable[[str, str], int | None]
    """Index of a deleted pod, from its name and the job id. None for pods of other jobs."""
    owns: Callable[[Object, str], bool] = is_controlled_by
    """True if a pod belongs to the main object with that UID. Labels alone are no proof."""
    host_name: str = names.POD_HOST  # host name of a pod inside the cluster, empty if unknown
    container: str = names.CONTAINER  # name that the kind requires for the container of Windlass
    adoption: Adoption | None = None  # None: objects made by others are not adopted
    also_adopts: tuple[Dialect, ...] = ()  # further kinds of the product to adopt

    @property
    def rights(self) -> tuple[Right, ...]:
        """Rights that a user needs in a namespace. The Role is made from them."""
        return make_rights(self.kind, self.more_rights)

    def find_pod_maker(self, body: Object) -> tuple[str, str]:
        """Return the kind and name of the object that makes the pods of a main object."""
        return self.pod_maker(body) if self.pod_maker else (self.kind.name, name_of(body))

    def find_blockers(
        self,
        body: Object,
        pods: Sequence[Object],
        events: Sequence[Object],
        quotas: Sequence[Object] = (),
        *,
        claims: Sequence[Object] = (),
        nodes: Sequence[Object] = (),
        queues: Sequence[str] | None = None,
        last_lines: Mapping[str, str] | None = None,
    ) -> list[Blocker]:
        """Return the blockers of a job, which keep it from running now.

        Only the first three arguments are required. The others make the messages more precise. `claims` are
        the volume claims of the namespace, and `nodes` those of the cluster. `queues` are the names of the
        namespace's queues, if known. `last_lines` maps a pod's name to the last line of its log.
        """
        if self.read_end(body) is not None:
            return []
        hold = self.read_hold(body, events=events, queues=queues)
        if hold is not None:
            return [hold]
        # Imported lazily: starting a job does not need it.
        from windlass.kube.diagnosis.pod_blockers import PodMaker, find_pod_blockers

        kind, name = self.find_pod_maker(body)
        maker = PodMaker(
            kind=kind,
            name=name,
            created_s=created_s(body),
            num_pods=self.num_pods(body),
            workers=names.WORKERS.format(job_id=name_of(body)) if self.make_workers else "",
        )
        blockers = find_pod_blockers(
            maker,
            pods,
            events,
            quotas,
            index_of=self.index_of,
            claims=claims,
            nodes=nodes,
            last_lines=last_lines or {},
        )
        if self.end_lost_pod is not None:
            blockers = [self._advise(blocker) for blocker in blockers]
        # If the operator creates another object that makes the pods, that object also replaces lost pods.
        lacks_pods = len(pods) < (1 if self.pod_maker else maker.num_pods)
        if self.operator and lacks_pods and not blockers:
            return [self._find_idle(body, events, num_pods=(len(pods), maker.num_pods))]
        return blockers

    def _find_idle(
        self, body: Object, events: Sequence[Object], *, num_pods: tuple[int, int]
    ) -> Blocker:
        from windlass.kube.diagnosis.job_admission import find_idle_operator

        pods = [
            one
            for one in events
            if one["involvedObject"].get("kind") == "Pod"
            and self.index_in_name(str(one["involvedObject"].get("name")), name_of(body))
            is not None
        ]
        last_event_s = max(map(event_last_s, pods), default=0.0)
        return find_idle_operator(
            body, self.kind.name, self.operator, events, num_pods=num_pods, since_s=last_event_s
        )

    def _advise(self, blocker: Blocker) -> Blocker:
        """Return the blocker, with a hint for a lost machine if Kubernetes does not replace its pod."""
        from windlass.kube.diagnosis.blocker import NODE_LOST

        if blocker.reason != NODE_LOST:
            return blocker
        hint = (
            f"its {self.kind.name} gets another pod when this one has ended: a client that reads the job's "
            f"status ends it, if it may (`windlass doctor -e {self.name} --role` prints the Role); otherwise "
            "it stays until the machine is back or an admin deletes its Node object"
        )
        return replace(blocker, hint=hint)

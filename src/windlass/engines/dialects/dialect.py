"""Dialect: everything that is known of one kind of object whose pods are a job's nodes.

A record of data and pure functions; nothing else in the project knows the kind. What speaks to a cluster is
`engines.cluster.cluster_engine`, once for all dialects; `engines.engine_table` lists them.
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

LABEL_JOB_INDEX = "batch.kubernetes.io/job-completion-index"  # of the pods of an Indexed Job
JOB_FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"  # likewise
_DAY_S = 86400
_MAX_INT32 = (1 << 31) - 1


class ObjectPhase(Enum):
    """How far a main object is, as it says itself."""

    HELD = "held"  # it may not have pods yet
    WAITING = "waiting"  # no pod of it has ever run
    STARTED = "started"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectEnd:
    """That a main object is over: whether its agents left in peace, when, and why not in its own words."""

    is_complete: bool
    at_s: float | None = None
    message: str = ""


class ReadHold(Protocol):
    """What holds an object back that may not have pods yet; None if nothing does."""

    def __call__(
        self,
        body: Object,
        /,
        *,
        events: Sequence[Object],
        queues: Sequence[str] | None,
    ) -> Blocker | None: ...


def read_condition_end(body: Object, *, complete: str = "Complete") -> ObjectEnd | None:
    """The end of an object whose own conditions tell it: `complete`, or Failed."""
    for kind in (complete, "Failed"):
        said = condition_of(body, kind)
        if is_true(said):
            why = (str(said[key]) for key in ("reason", "message") if said.get(key))
            return ObjectEnd(
                is_complete=kind == complete,
                at_s=read_time(said.get("lastTransitionTime")),
                message=": ".join(why),
            )
    return None


def never_ends(_body: Object) -> None:
    """Return no end: for kinds that never end."""


def never_held(
    _body: Object, *, events: Sequence[Object], queues: Sequence[str] | None
) -> Blocker | None:
    """Return no hold: for kinds that have their pods at once."""


def read_ready_phase(body: Object) -> ObjectPhase:
    """Return the phase of a kind that only counts the pods that are ready."""
    is_up = body.get("status", {}).get("readyReplicas")
    return ObjectPhase.STARTED if is_up else ObjectPhase.WAITING


def count_replicas(body: Object) -> int:
    """Return the number of pods of an object that has it as `replicas`."""
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
    """Return the field that ends a job whose lead does not.

    Kubernetes counts from the start of the first pod, so the limit is far above the job's own.
    """
    if plan.timeout_s is None:
        return {}
    limit_s = 2 * math.ceil(plan.timeout_s) + _DAY_S
    return {"activeDeadlineSeconds": min(limit_s, _MAX_INT32)}


def delete_after_ttl(plan: Plan) -> dict[str, int]:
    """Return the field that has the cluster delete an object some time after its end."""
    ttl_s = pod_of(plan).ttl_s
    return {} if ttl_s is None else {"ttlSecondsAfterFinished": math.ceil(ttl_s)}


def allow_missing_pods(plan: Plan) -> dict[str, Any]:
    """Return the fields of an Indexed Job that let it end although some of its pods never came."""
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
    """Whether an object that says so in its own spec is held back."""
    return bool(body.get("spec", {}).get("suspend"))


def make_hold_reader(prefix: str, is_held: Callable[[Object], bool] = is_suspended) -> ReadHold:
    """Why an object is suspended: its submit broke off, somebody did it, or its queue has not let it in.

    `prefix` begins the names of Kueue's Workloads for objects of this kind.
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
    """An object that the main one names, and that must be there first: ours, made from one of the cluster's.

    It has the job's id for a name, and comes to be owned by the main object.
    """

    kind: ObjectKind
    sources: tuple[ObjectKind, ...]  # where what it is made from is looked for, in this order
    source_name: Callable[[Plan], str]
    shipped: Mapping[str, Object]  # sources as their product ships them: for an export
    render: Callable[[Plan, FileNames, str, Object], dict[str, Any]]
    """The object, from what a main object is rendered from, and its source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adoption:
    """How the pods of an object are known that others made, with kubectl or the kind's own SDK."""

    pod_labels: Callable[[str], Mapping[str, str]]  # which its pods have, by its name
    index_of: Callable[[Object, Object], int | None]
    """Of the object and one of its pods; None: it has none, and is numbered as it comes."""
    owns: Callable[[Object, Object], bool] | None = None
    """Whether one of them is the object's; None: as the dialect knows it."""
    find_slip: Callable[[Object], str] = lambda _body: ""  # what its maker meant and did not get


class MakeWorkers(Protocol):
    """The object whose pods are a compute's nodes from 1 on; `owner` is the main object."""

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
"""From a compute's plan, its main object, and the number of its nodes and the size of those from 1 on: the
patch that makes it so. Without a size workers stay as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """One kind of object, as an engine.

    The main object is made first and owns all others, so that deleting it deletes them and a submit that
    breaks off leaves nothing. Where it can be `start`ed it is rendered held back, and started when the rest
    is there; where it cannot, its pods wait for the job's Secret, which they mount.
    """

    name: str  # of the engine
    kind: ObjectKind
    make_name: Callable[[str], str] = str  # of the main object, from its job's id
    can: frozenset[str]
    needs: tuple[Need, ...] = ()  # what not every cluster serves
    newer_fields: Mapping[str, Patch] = field(default_factory=dict)
    """Fields that older operators refuse and jobs can do without: what leaves each out."""
    more_rights: tuple[Right, ...] = ()  # besides those on the kind itself
    operator: str = ""  # the product that makes the pods, where Kubernetes itself does not
    prerequisite: Prerequisite | None = None

    render: Callable[[Plan, FileNames, str], dict[str, Any]]
    """The main object of a plan, the names of its files, and the mark of its submit."""
    start: Patch | None = None  # lets a held one run, and resumes a suspended one
    suspend: Patch | None = None
    resize: Callable[[int], Patch] | None = None
    regroup: Regroup | None = None  # in place of `resize`, where one object has groups of pods
    make_workers: MakeWorkers | None = None
    """Where its pods are all alike: a second object of its kind, for nodes that are not. It is owned by the
    main one, and resized as that is."""
    give_up: Patch | None = None  # has it fail at the next pod that does; empty: it does anyway
    end_lost_pod: Patch | None = None
    """Of kinds that replace only a pod that has ended: the status that one on a dead machine is given before
    it is deleted. Empty: to delete it is enough; None: it is replaced anyway."""
    stays_up: bool = False  # it never ends, and starts its containers again

    read_end: Callable[[Object], ObjectEnd | None] = never_ends
    read_phase: Callable[[Object], ObjectPhase]
    num_pods: Callable[[Object], int] = count_replicas
    read_hold: ReadHold = never_held
    pod_made: str = ""
    """Where pods are not told how many were lost before them: the reason of its event when it makes one."""
    pod_maker: Callable[[Object], tuple[str, str]] | None = None
    """Kind and name of what makes the pods, as events name it; None: the main object itself."""

    lead_labels: Mapping[str, str]  # of the lead's pod alone, among those of its job
    compute_lead_labels: Callable[[str], Mapping[str, str]] = lambda _job_id: {}
    """What else it has, by the job's id, where a compute's workers may have the same ones."""
    index_of: Callable[[Object], int | None]
    index_in_name: Callable[[str, str], int | None]
    """The index of a pod that is gone, from its name and the job's id; None for another job's."""
    owns: Callable[[Object, str], bool] = is_controlled_by
    """Whether a pod belongs to the main object of that uid: labels may be anybody's."""
    host_name: str = names.POD_HOST  # of a pod, inside the cluster; empty: nobody can tell
    container: str = names.CONTAINER  # what its kind has our container called
    adoption: Adoption | None = None  # None: what others made of this kind is left alone
    also_adopts: tuple[Dialect, ...] = ()  # other kinds of the same product that others make

    @property
    def rights(self) -> tuple[Right, ...]:
        """What a user must be allowed to do in a namespace; the Role is made of it."""
        return make_rights(self.kind, self.more_rights)

    def find_pod_maker(self, body: Object) -> tuple[str, str]:
        """Kind and name of what makes the pods of a main object."""
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
        """What is in a job's way now. Only the first three are needed; the rest makes sentences more exact.

        `claims` are the namespace's volume claims, `nodes` the cluster's, `queues` the
        names of the namespace's queues if they are known; `last_lines` maps a pod's name to the last line of
        its log.
        """
        if self.read_end(body) is not None:
            return []
        hold = self.read_hold(body, events=events, queues=queues)
        if hold is not None:
            return [hold]
        # imported only now: nothing that starts a job needs it
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
        # where the operator has them made by something else, that replaces them, too
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
        heard_s = max(map(event_last_s, pods), default=0.0)
        return find_idle_operator(
            body, self.kind.name, self.operator, events, num_pods=num_pods, since_s=heard_s
        )

    def _advise(self, blocker: Blocker) -> Blocker:
        """The same, with what helps against a lost machine where Kubernetes alone does not."""
        from windlass.kube.diagnosis.blocker import NODE_LOST

        if blocker.reason != NODE_LOST:
            return blocker
        hint = (
            f"its {self.kind.name} gets another pod when this one has ended: a client that looks at the job "
            f"ends it, if it may (`windlass doctor -e {self.name} --role` prints the Role); else it stays "
            "until the machine is back or an admin deletes its Node object"
        )
        return replace(blocker, hint=hint)

"""The dialect `kubernetes`: nodes are the pods of an Indexed Job. No CRD, no operator.

Pure, and the only file that knows what an Indexed Job is: how it is written, started, sized, what it shows
when it ends or waits, and how its pods say which node they are.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect, ObjectEnd, ObjectPhase
from windlass.kube.fields import (
    Object,
    condition_of,
    created_s,
    is_true,
    labels_of,
    read_index,
    read_time,
)
from windlass.kube.kinds import JOBS
from windlass.kube.manifests import make_metadata
from windlass.kube.mounts import pod_of
from windlass.kube.naming import make_annotations
from windlass.kube.pod_template import make_template
from windlass.plan.plan import Plan

if TYPE_CHECKING:
    from windlass.kube.blocker import Blocker

LABEL_INDEX = "batch.kubernetes.io/job-completion-index"
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"  # in every container
_FAILURES = "metadata.annotations['batch.kubernetes.io/job-index-failure-count']"
_KUEUE_PREFIX = "job-"  # of the names of its Workloads
_POD_NAME = re.compile(r"(?P<job>.+)-(?P<index>\d+)-[a-z0-9]{5}")
_DAY_S = 86400


def make_job(plan: Plan, files: Collection[str], submit: str = "") -> dict[str, Any]:
    """The Job, suspended: one pod a node, replaced when it is lost, never restarted in place.

    There is no podFailurePolicy: it would keep the pod of a dead node from being replaced. The lead decides
    what is tried again, and the Job's own budget only has to be large enough.
    """
    pod = pod_of(plan)
    metadata = make_metadata(plan, plan.job_id, annotations=make_annotations(plan, submit))
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    spec: dict[str, Any] = {
        "suspend": True,
        "completionMode": "Indexed",
        **_resize(len(plan.nodes))["spec"],
        "backoffLimitPerIndex": plan.node_restarts,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": make_template(plan, files, env_fields={names.NODE_FAILURES: _FAILURES}),
    }
    if plan.min_nodes < len(plan.nodes):  # pods that never came must not keep it from ending
        spec["successPolicy"] = {"rules": [{"succeededIndexes": "0"}]}
    if pod.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = math.ceil(pod.ttl_s)
    if plan.timeout_s is not None:
        # it counts from the first pod's creation, so it can only catch a lead that forgot
        spec["activeDeadlineSeconds"] = min(2 * math.ceil(plan.timeout_s) + _DAY_S, (1 << 31) - 1)
    return {"apiVersion": JOBS.api_version, "kind": JOBS.name, "metadata": metadata, "spec": spec}


def _resize(num_nodes: int) -> dict[str, Any]:
    return {"spec": {"completions": num_nodes, "parallelism": num_nodes}}


def read_end(job: Object) -> ObjectEnd | None:
    """Complete or Failed, by its own conditions."""
    for kind in ("Complete", "Failed"):
        said = condition_of(job, kind)
        if is_true(said):
            why = (str(said[key]) for key in ("reason", "message") if said.get(key))
            return ObjectEnd(
                is_complete=kind == "Complete",
                at_s=read_time(said.get("lastTransitionTime")),
                message=": ".join(why),
            )
    return None


def read_phase(job: Object) -> ObjectPhase:
    if read_end(job) is not None:
        return ObjectPhase.ENDED
    counts = job.get("status", {})
    if any(counts.get(kind) for kind in ("ready", "failed", "succeeded", "terminating")):
        return ObjectPhase.STARTED
    return ObjectPhase.HELD if job.get("spec", {}).get("suspend") else ObjectPhase.WAITING


def read_hold(
    job: Object,
    *,
    workloads: Sequence[Object],
    events: Sequence[Object],
    queues: Sequence[str] | None,
) -> Blocker | None:
    """Why it is suspended: its submit broke off, or its queue has not let it in."""
    if not job.get("spec", {}).get("suspend"):
        return None
    from windlass.kube.blocker import HALF_SUBMITTED, Blocker
    from windlass.kube.queues import read_waiting

    since_s = read_time(condition_of(job, "Suspended").get("lastTransitionTime")) or created_s(job)
    if labels_of(job).get(names.LABEL_QUEUE) is None:
        return Blocker(
            reason=HALF_SUBMITTED,
            message="the job was made but never started: its submit did not finish, or it was suspended",
            hint="windlass rm JOB removes it; then submit it again",
            since_s=since_s,
        )
    return read_waiting(job, workloads, events, queues, since_s=since_s, prefix=_KUEUE_PREFIX)


def index_in_name(pod: str, job_id: str) -> int | None:
    match = _POD_NAME.fullmatch(pod)
    return int(match["index"]) if match and match["job"] == job_id else None


KUBERNETES = Dialect(
    name="kubernetes",
    kind=JOBS,  # which every cluster serves: it needs nothing else
    can=frozenset({"computes", "detach", "restarts", "timeout", "pods", "keys", "ends"}),
    render=make_job,
    start={"spec": {"suspend": False}},
    suspend={"spec": {"suspend": True}},
    resize=_resize,
    give_up={"spec": {"backoffLimit": 0}},
    read_end=read_end,
    read_phase=read_phase,
    num_pods=lambda job: int(job.get("spec", {}).get("parallelism") or 1),
    read_hold=read_hold,
    lead_labels={LABEL_INDEX: "0"},
    index_of=lambda pod: read_index(labels_of(pod).get(LABEL_INDEX, "")),
    index_in_name=index_in_name,
)

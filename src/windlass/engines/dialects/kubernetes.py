"""Dialect `kubernetes`: nodes are the pods of an Indexed Job, without a CRD or an operator.

This module performs no I/O. It is the only one that knows about Indexed Jobs: how to make, start and resize
them, and how to read their phase, their end, and the indexes of their pods.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from windlass import names, records
from windlass.engines.dialects.dialect import (
    JOB_FAILURES,
    LABEL_JOB_INDEX,
    Dialect,
    ObjectPhase,
    allow_missing_pods,
    delete_after_ttl,
    is_suspended,
    limit_time,
    make_hold_reader,
    make_main_object,
    read_condition_end,
    read_index_in_name,
    read_index_label,
)
from windlass.kube.objects.fields import Object, controller_name_of, is_controlled_by, labels_of
from windlass.kube.objects.kinds import JOBS
from windlass.kube.objects.manifests import FileNames, make_metadata, pod_of
from windlass.kube.objects.naming import make_annotations
from windlass.kube.objects.pod_template import make_template
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSize

LABEL_INDEX = LABEL_JOB_INDEX
INDEX_VARIABLE = "JOB_COMPLETION_INDEX"  # Kubernetes sets it in every container
_LABEL_JOB_NAME = "batch.kubernetes.io/job-name"  # set by Kubernetes on every pod of a Job
_KUEUE_PREFIX = "job-"  # prefix of the names of its Workloads


def make_job(plan: Plan, files: FileNames, submit: str = "") -> dict[str, Any]:
    """Return the suspended Job, with one pod per node. Kubernetes replaces lost pods.

    Pods are never restarted in place. There is no podFailurePolicy, because Kubernetes would then not replace
    the pod of a dead node. The lead decides about retries, and the Job's own limit only has to be large
    enough.
    """
    pod = pod_of(plan)
    spec: dict[str, Any] = {
        "suspend": True,
        "completionMode": "Indexed",
        **_resize(1 if pod.workers else len(plan.nodes))["spec"],
        "backoffLimitPerIndex": plan.node_restarts,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": make_template(plan, files, env_fields={names.NODE_FAILURES: JOB_FAILURES}),
        **allow_missing_pods(plan),
    }
    spec |= delete_after_ttl(plan) | limit_time(plan)
    return make_main_object(plan, submit, JOBS, spec)


def make_workers(
    plan: Plan,
    files: FileNames,
    /,
    *,
    size: PodSize,
    num_nodes: int,
    owner: dict[str, Any],
) -> dict[str, Any]:
    """Return a second Job for nodes 1 and up, since all pods of a Job are identical.

    Its completion indexes start at 0. Its agents and all readers of its pods add 1.
    """
    plan = replace(plan, pod=replace(pod_of(plan), workers=size))
    name = names.WORKERS.format(job_id=plan.job_id)
    about = {names.ANNOTATION_SIZE: json.dumps(records.to_json(size), sort_keys=True)}
    metadata = make_metadata(plan, name, owner, {**make_annotations(plan), **about})
    first = {names.LABEL_FIRST_INDEX: "1", names.LABEL_MAIN: owner["uid"]}
    metadata["labels"] |= first
    template = make_template(
        plan,
        files,
        env_fields={names.NODE_FAILURES: JOB_FAILURES},
        env={names.FIRST_INDEX: "1"},
        is_worker=True,
    )
    template["metadata"]["labels"] |= first
    spec = {
        "completionMode": "Indexed",
        **_resize(num_nodes)["spec"],
        "backoffLimitPerIndex": plan.node_restarts,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "TerminatingOrFailed",
        "template": template,
    }
    return {"apiVersion": JOBS.api_version, "kind": JOBS.name, "metadata": metadata, "spec": spec}


def _owns(pod: Object, uid: str) -> bool:
    """Return whether the pod belongs to the main Job, or to its Job for workers, which has its UID."""
    if is_controlled_by(pod, uid):
        return True
    labels = labels_of(pod)
    workers = names.WORKERS.format(job_id=labels.get(names.LABEL_JOB, ""))
    return labels.get(names.LABEL_MAIN) == uid and controller_name_of(pod) == workers


_index_by_label = read_index_label(LABEL_INDEX)


def _index_of(pod: Object) -> int | None:
    index = _index_by_label(pod)
    return None if index is None else index + (names.LABEL_FIRST_INDEX in labels_of(pod))


def _resize(num_nodes: int) -> dict[str, Any]:
    return {"spec": {"completions": num_nodes, "parallelism": num_nodes}}


def read_phase(job: Object) -> ObjectPhase:
    if read_condition_end(job) is not None:
        return ObjectPhase.ENDED
    counts = job.get("status", {})
    if any(counts.get(kind) for kind in ("ready", "failed", "succeeded", "terminating")):
        return ObjectPhase.STARTED
    return ObjectPhase.HELD if is_suspended(job) else ObjectPhase.WAITING


_index_in_name = read_index_in_name(r"(?P<job>.+)-(?P<index>\d+)-[a-z0-9]{5}")


def index_in_name(pod: str, job_id: str) -> int | None:
    index = _index_in_name(pod, names.WORKERS.format(job_id=job_id))
    return _index_in_name(pod, job_id) if index is None else index + 1


KUBERNETES = Dialect(
    name="kubernetes",
    kind=JOBS,  # every cluster serves Jobs, so there are no needs
    can=frozenset(
        {"computes", "detach", "restarts", "timeout", "pods", "keys", "ends", "worker_sizes"}
    ),
    render=make_job,
    start={"spec": {"suspend": False}},
    suspend={"spec": {"suspend": True}},
    resize=_resize,
    make_workers=make_workers,
    give_up={"spec": {"backoffLimit": 0}},
    read_end=read_condition_end,
    read_phase=read_phase,
    num_pods=lambda job: int(job.get("spec", {}).get("parallelism") or 1),
    read_hold=make_hold_reader(_KUEUE_PREFIX),
    lead_labels={LABEL_INDEX: "0"},
    compute_lead_labels=lambda job_id: {_LABEL_JOB_NAME: job_id},
    index_of=_index_of,
    index_in_name=index_in_name,
    owns=_owns,
)

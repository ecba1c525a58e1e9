"""Dialect `pytorchjob`: nodes are the Worker pods of a PyTorchJob of Kubeflow's training-operator.

This module performs no I/O. It is the only one that knows about PyTorchJobs. There is no Master, so the
operator adds no container that waits for the Master's DNS name. Pods find the lead through a Service that
Windlass creates. The restart policy is ExitCode: an exit code below 128 is final and makes the job Failed.
After a higher one (a signal), the pod is replaced.
"""

from __future__ import annotations

import json
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import (
    Adoption,
    Dialect,
    ObjectEnd,
    ObjectPhase,
    delete_after_ttl,
    limit_time,
    make_hold_reader,
    make_main_object,
    read_condition_end,
    read_index_in_name,
    read_index_label,
)
from windlass.kube.client.access import END_LOST_PODS, Need
from windlass.kube.objects.fields import (
    Object,
    annotations_of,
    condition_of,
    is_true,
    labels_of,
)
from windlass.kube.objects.kinds import PYTORCH_JOBS
from windlass.kube.objects.manifests import FileNames
from windlass.kube.objects.pod_template import make_template
from windlass.plan.plan import Plan

CONTAINER = "pytorch"  # the operator requires this name
LABEL_INDEX = "training.kubeflow.org/replica-index"
LABEL_TYPE = "training.kubeflow.org/replica-type"
LABEL_JOB_NAME = "training.kubeflow.org/job-name"
# Variables that the operator sets in every container, for another torchrun.
_OPERATORS_OWN = (
    *("PYTHONUNBUFFERED", names.PET_NNODES, names.PET_NPROC_PER_NODE, names.PET_RDZV_ENDPOINT),
    *("PET_RDZV_BACKEND", "PET_RDZV_ID", "PET_RDZV_CONF", "PET_MAX_RESTARTS", "PET_STANDALONE"),
)
_MISSPELLED = "nProcPerNode"
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_KUEUE_PREFIX = "pytorchjob-"  # prefix of the names of its Workloads


def render(plan: Plan, files: FileNames, submit: str = "") -> dict[str, Any]:
    """Return the suspended PyTorchJob. The lead decides which attempt follows a lost pod."""
    worker = {
        "replicas": len(plan.nodes),
        "restartPolicy": "ExitCode",
        "template": _make_template(plan, files),
    }
    spec: dict[str, Any] = {
        "runPolicy": {"suspend": True, **_make_run_policy(plan)},
        "nprocPerNode": str(plan.nodes[0].num_ranks),
        "pytorchReplicaSpecs": {"Worker": worker},
    }
    if plan.min_nodes < len(plan.nodes):  # lets it end although some pods were never created
        spec["elasticPolicy"] = {
            "minReplicas": plan.min_nodes,
            "maxReplicas": len(plan.nodes),
            "rdzvBackend": "c10d",
        }
    return make_main_object(plan, submit, PYTORCH_JOBS, spec)


def _make_template(plan: Plan, files: FileNames) -> dict[str, Any]:
    template = make_template(
        plan,
        files,
        env={names.ENV_TELLS_FAILURE: "1", names.ENV_FORGET: ",".join(_OPERATORS_OWN)},
        env_fields={names.NODE_INDEX: f"metadata.labels['{LABEL_INDEX}']"},
        container=CONTAINER,
    )
    del template["spec"]["restartPolicy"]  # the operator warns about any value but its own
    return template


def _make_run_policy(plan: Plan) -> dict[str, Any]:
    policy: dict[str, Any] = {
        "cleanPodPolicy": "None",  # the output of ranks is in the logs of their pods
        "backoffLimit": plan.node_restarts,
    }
    return policy | delete_after_ttl(plan) | limit_time(plan)


def read_end(job: Object) -> ObjectEnd | None:
    """Return the end from its conditions Succeeded and Failed."""
    return read_condition_end(job, complete="Succeeded")


def read_phase(job: Object) -> ObjectPhase:
    if read_end(job) is not None:
        return ObjectPhase.ENDED
    counts = (job.get("status", {}).get("replicaStatuses") or {}).values()
    has_run = any(of.get(kind) for of in counts for kind in ("active", "succeeded", "failed"))
    if has_run or is_true(condition_of(job, "Restarting")):
        return ObjectPhase.STARTED
    return ObjectPhase.HELD if _is_suspended(job) else ObjectPhase.WAITING


def _is_suspended(job: Object) -> bool:
    return bool((job.get("spec", {}).get("runPolicy") or {}).get("suspend"))


def num_pods(job: Object) -> int:
    replicas = job.get("spec", {}).get("pytorchReplicaSpecs") or {}
    return sum(int(of.get("replicas") or 1) for of in replicas.values())


index_of = read_index_label(LABEL_INDEX)


def index_among(job: Object, pod: Object) -> int | None:
    """Return the index of a pod of an adopted job, in which a Master comes first, as in RANK."""
    index = index_of(pod)
    is_after_master = "Master" in job["spec"]["pytorchReplicaSpecs"] and (
        labels_of(pod).get(LABEL_TYPE) == "worker"
    )
    return index if index is None else index + is_after_master


def find_misspelled(job: Object) -> str:
    """Return a warning about `nProcPerNode`, which guides write instead of `nprocPerNode`.

    The API server drops it, but the annotation of `kubectl apply` still contains it.
    """
    try:
        applied = json.loads(annotations_of(job).get(_APPLIED, "{}"))
    except ValueError:
        return ""
    wanted = (applied.get("spec") or {}).get(_MISSPELLED)
    actual = job.get("spec", {}).get("nprocPerNode") or "auto"
    if wanted is None or str(wanted) == actual:
        return ""
    return (
        f"{_MISSPELLED}: {wanted} in its file has no effect, and nprocPerNode is {actual}; "
        f'write nprocPerNode: "{wanted}"'
    )


index_in_name = read_index_in_name(r"(?P<job>.+)-(master|worker)-(?P<index>\d+)")

PYTORCHJOB = Dialect(
    name="pytorchjob",
    kind=PYTORCH_JOBS,
    can=frozenset({"detach", "restarts", "timeout", "pods", "keys", "ends"}),
    needs=(Need(kind=PYTORCH_JOBS, product="Kubeflow's training-operator 1.9"),),
    more_rights=(END_LOST_PODS,),
    operator="training-operator",
    render=render,
    start={"spec": {"runPolicy": {"suspend": False}}},
    suspend={"spec": {"runPolicy": {"suspend": True}}},
    give_up={"spec": {"runPolicy": {"backoffLimit": 0}}},
    end_lost_pod={},  # deleting it frees its name
    read_end=read_end,
    read_phase=read_phase,
    num_pods=num_pods,
    pod_made="SuccessfulCreatePod",
    read_hold=make_hold_reader(_KUEUE_PREFIX, _is_suspended),
    lead_labels={LABEL_TYPE: "worker", LABEL_INDEX: "0"},
    index_of=index_of,
    index_in_name=index_in_name,
    host_name="{job_id}-worker-{index}",
    container=CONTAINER,
    adoption=Adoption(
        pod_labels=lambda name: {LABEL_JOB_NAME: name},
        index_of=index_among,
        find_author_mistake=find_misspelled,
    ),
)

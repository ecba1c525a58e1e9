"""Dialect `raycluster`: nodes are the pods of a RayCluster of KubeRay, and its head pod is node 0.

This module performs no I/O. It is the only one that knows about RayClusters. KubeRay replaces pods
indefinitely, so a RayCluster never ends. Its worker pods have no index, so the lead assigns one. The pods run
the Windlass agent, which starts Ray if the work needs it. The settings that KubeRay adds for its own
`ray start` are disabled.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import (
    Adoption,
    Dialect,
    ObjectEnd,
    ObjectPhase,
    is_suspended,
    make_hold_reader,
    make_main_object,
)
from windlass.kube.client.access import END_LOST_PODS, Need, Right
from windlass.kube.objects.fields import (
    Object,
    condition_of,
    controller_name_of,
    is_true,
    labels_of,
    name_of,
    read_time,
)
from windlass.kube.objects.kinds import RAY_CLUSTERS, RAY_JOBS
from windlass.kube.objects.manifests import FileNames, pod_of, read_file_names
from windlass.kube.objects.pod_template import apply_patch, make_template
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSize

LABEL_CLUSTER = "ray.io/cluster"
LABEL_TYPE = "ray.io/node-type"
HEAD = "head"
GROUP = "workers"
OVERWRITE = "ray.io/overwrite-container-cmd"
# KubeRay makes worker pods wait for a Ray head, but Windlass starts the head only after the workers have
# joined. The waiting container has the agent's variables and mounts. It runs bash, which first sources this
# annotation's file.
ANNOTATION_BASH = "windlass.dev/bash-env"
BASH_FOLDER = "/windlass/kuberay"
NO_WAIT = 'case "$BASH_EXECUTION_STRING" in *"ray health-check"*) exit 0;; esac'
# Variables that KubeRay sets in every container for its own Ray.
_OPERATORS_OWN = (
    *("BASH_ENV", "RAY_ADDRESS", "RAY_IP", "RAY_PORT", "FQ_RAY_IP", "REDIS_PASSWORD"),
    *("KUBERAY_GEN_RAY_START_CMD", "RAY_CLUSTER_NAME", "RAY_CLOUD_INSTANCE_ID"),
    "RAY_NODE_TYPE_NAME",
)
_KUEUE_PREFIX = "raycluster-"  # prefix of the names of its Workloads
_NEVER = (1 << 31) - 1


def render(plan: Plan, files: FileNames, submit: str = "") -> dict[str, Any]:
    """Return the suspended RayCluster, with a head and one group with a fixed number of workers."""
    num_workers = len(plan.nodes) - 1
    group = {
        **_make_group(plan, files, num_workers),
        "minReplicas": max(0, plan.min_nodes - 1),
    }
    head = {"rayStartParams": {}, "template": _make_template(plan, files, is_worker=False)}
    spec = {
        "suspend": True,
        "headGroupSpec": head,
        "workerGroupSpecs": [group] if num_workers else [],
    }
    return make_main_object(plan, submit, RAY_CLUSTERS, spec)


def _make_group(plan: Plan, files: FileNames, num_workers: int) -> dict[str, Any]:
    """Return a group of workers, named after their size, since KubeRay never changes existing pods."""
    size = pod_of(plan).workers
    suffix = "" if size is None else f"-{zlib.crc32(repr(size).encode()):08x}"
    return {
        "groupName": f"{GROUP}{suffix}",
        "replicas": num_workers,
        "minReplicas": num_workers,
        "maxReplicas": num_workers,
        "rayStartParams": {},
        "template": _make_template(plan, files, is_worker=True),
    }


def regroup(plan: Plan, cluster: Object, num_nodes: int, size: PodSize | None) -> dict[str, Any]:
    """Return the patch that puts all workers into the last group, which has their size.

    The other groups become empty.
    """
    spec = cluster["spec"]
    groups = [dict(group) for group in spec.get("workerGroupSpecs") or ()]
    if size is not None or not groups:
        plan = replace(plan, pod=replace(pod_of(plan), workers=size))
        files = read_file_names(spec["headGroupSpec"]["template"]["spec"], plan.job_id)
        wanted = _make_group(plan, files, num_nodes - 1)
        own = [group for group in groups if group["groupName"] == wanted["groupName"]]
        groups = [*(group for group in groups if group not in own), *(own or [wanted])]
    for group in groups:
        count = num_nodes - 1 if group is groups[-1] else 0
        group |= dict.fromkeys(("replicas", "minReplicas", "maxReplicas"), count)
    return {"spec": {"workerGroupSpecs": groups}}


def _make_template(plan: Plan, files: FileNames, *, is_worker: bool) -> dict[str, Any]:
    template = make_template(
        plan,
        files,
        env={
            names.NODE_INDEX: names.INDEX_FROM_LEAD if is_worker else "0",
            names.ENV_STAYS_UP: "1",
            names.ENV_FORGET: ",".join(_OPERATORS_OWN),
            "BASH_ENV": f"{BASH_FOLDER}/bash-env",
        },
        restart_policy="Always",
        is_worker=is_worker,
    )
    del template["spec"]["subdomain"]  # useless for pods without stable names
    return apply_patch(_make_frame(plan), template)


def _make_frame(plan: Plan) -> dict[str, Any]:
    """Return the pod fields of this kind alone. Own probes keep KubeRay from adding its Ray probes."""
    probe = {"exec": {"command": [plan.python or "python3", "-I", "-S", "-c", ""]}}
    source = {"fieldRef": {"fieldPath": f"metadata.annotations['{ANNOTATION_BASH}']"}}
    volume = {"downwardAPI": {"items": [{"path": "bash-env", **source}]}}
    container = {
        "name": names.CONTAINER,
        # A pod is ready when its agent runs. The agent checks Ray itself.
        "readinessProbe": {**probe, "periodSeconds": 30, "timeoutSeconds": 10},
        "livenessProbe": {**probe, "periodSeconds": 3600, "failureThreshold": _NEVER},
        "volumeMounts": [{"name": "kuberay", "mountPath": BASH_FOLDER, "readOnly": True}],
    }
    return {
        "metadata": {"annotations": {OVERWRITE: "true", ANNOTATION_BASH: NO_WAIT}},
        "spec": {"containers": [container], "volumes": [{"name": "kuberay", **volume}]},
    }


def read_phase(cluster: Object) -> ObjectPhase:
    """Return the phase, which is never ENDED. The head is ready as soon as its container runs."""
    is_up = cluster.get("status", {}).get("state") == "ready"
    if is_up or is_true(condition_of(cluster, "HeadPodReady")):
        return ObjectPhase.STARTED
    return ObjectPhase.HELD if is_suspended(cluster) else ObjectPhase.WAITING


def num_pods(cluster: Object) -> int:
    groups = cluster.get("spec", {}).get("workerGroupSpecs") or ()
    return 1 + sum(int(of.get("replicas") or 0) * int(of.get("numOfHosts") or 1) for of in groups)


def index_of(pod: Object) -> int | None:
    """Return 0 for the head, or None for workers, whose indexes only the lead knows."""
    return 0 if labels_of(pod).get(LABEL_TYPE) == HEAD else None


def index_in_name(pod: str, job_id: str) -> int | None:
    return 0 if re.fullmatch(rf"{re.escape(job_id)}-{HEAD}(-[a-z0-9]{{5}})?", pod) else None


# -- objects made by others --------------------------------------------------------------------


def read_job_end(job: Object) -> ObjectEnd | None:
    """Return the end of a RayJob. Older KubeRay reports failed work only in `jobStatus`."""
    status = job.get("status", {})
    if status.get("jobDeploymentStatus") not in ("Complete", "Failed"):
        return None
    # Further lines of the message repeat the logs of the work.
    why = (str(status[key]).partition("\n")[0] for key in ("reason", "message") if status.get(key))
    return ObjectEnd(
        is_complete=status.get("jobStatus") == "SUCCEEDED",
        at_s=read_time(status.get("endTime")),
        message=": ".join(why),
    )


def read_job_phase(job: Object) -> ObjectPhase:
    if read_job_end(job) is not None:
        return ObjectPhase.ENDED
    if job.get("status", {}).get("jobStatus"):
        return ObjectPhase.STARTED
    return ObjectPhase.HELD if is_suspended(job) else ObjectPhase.WAITING


def owns_for_job(job: Object, pod: Object) -> bool:
    """Return whether the pod belongs to the job's RayCluster, or is the one that submits the job's work."""
    status = job.get("status", {})
    makers = (status.get("rayClusterName"), name_of(job))
    return controller_name_of(pod) in makers


_OF_OTHERS = Adoption(
    pod_labels=lambda name: {LABEL_CLUSTER: name}, index_of=lambda _cluster, pod: index_of(pod)
)

RAYCLUSTER = Dialect(
    name="raycluster",
    kind=RAY_CLUSTERS,
    can=frozenset({"computes", "detach", "restarts", "timeout", "pods", "keys", "worker_sizes"}),
    needs=(Need(kind=RAY_CLUSTERS, product="KubeRay 1.1"),),
    more_rights=(
        END_LOST_PODS,
        Right(
            group=RAY_JOBS.group,
            resource=RAY_JOBS.plural,
            verbs=("get", "list", "watch", "delete"),
            purpose="read and cancel RayJobs that Windlass did not create",
            optional=True,
        ),
    ),
    operator="KubeRay",
    render=render,
    start={"spec": {"suspend": False}},
    suspend={"spec": {"suspend": True}},
    regroup=regroup,
    end_lost_pod={},  # a lost pod is replaced only after it has been deleted
    stays_up=True,
    read_phase=read_phase,
    num_pods=num_pods,
    pod_made="CreatedHeadPod",
    read_hold=make_hold_reader(_KUEUE_PREFIX),
    lead_labels={LABEL_TYPE: HEAD},
    index_of=index_of,
    index_in_name=index_in_name,
    host_name="",
    adoption=_OF_OTHERS,
)
RAYJOB = replace(  # Windlass makes none itself
    RAYCLUSTER,
    kind=RAY_JOBS,
    read_end=read_job_end,
    read_phase=read_job_phase,
    num_pods=lambda job: num_pods({"spec": job.get("spec", {}).get("rayClusterSpec") or {}}),
    adoption=replace(_OF_OTHERS, pod_labels=lambda _name: {}, owns=owns_for_job),
)
RAYCLUSTER = replace(RAYCLUSTER, also_adopts=(RAYJOB,))

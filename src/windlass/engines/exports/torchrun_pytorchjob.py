"""The same training as a PyTorchJob with torchrun, as training-operator's guides write it. Pure.

A Master and Workers; the operator tells torchrun by its variables who is who. With fewer nodes than asked for
allowed, Workers only: those find each other at worker 0.
"""

from __future__ import annotations

import math
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.objects.kinds import PYTORCH_JOBS
from windlass.kube.objects.manifests import pod_of
from windlass.kube.objects.torchrun_pods import (
    Rendezvous,
    TorchrunPods,
    make_operator_pods,
    make_torchrun_claims,
    make_torchrun_code,
    make_torchrun_metadata,
    make_torchrun_template,
)
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSpec

Object = dict[str, Any]

_CONTAINER = "pytorch"  # the operator wants one of this name


def make_plain(
    plan: Plan, *, script: str | None, rendezvous: Rendezvous, flags: tuple[str, ...] = ()
) -> list[Object]:
    """ConfigMap, claims and PyTorchJob, in the order in which they can be applied."""
    if rendezvous != Rendezvous():
        raise SpecError(
            "where the ranks of a PyTorchJob meet is for its operator to say",
            hint="leave out --rdzv-backend and --rdzv-endpoint",
        )
    pod = pod_of(plan)
    pods = make_operator_pods(plan, script, flags, container=_CONTAINER)
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        _make_job(plan, pod, pods),
    ]


def _make_job(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> Object:
    metadata = make_torchrun_metadata(pod, pods, pods.name)
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    template = make_torchrun_template(plan, pod, pods)
    spec: Object = {
        "nprocPerNode": str(plan.nodes[0].num_ranks),
        "runPolicy": _make_run_policy(plan, pod),
    }
    if plan.min_nodes < len(plan.nodes):
        spec["elasticPolicy"] = {
            "minReplicas": plan.min_nodes,
            "maxReplicas": len(plan.nodes),
            "rdzvBackend": "c10d",
        }
        replicas = {"Worker": len(plan.nodes)}
    else:
        replicas = {"Master": 1, "Worker": len(plan.nodes) - 1}
    spec["pytorchReplicaSpecs"] = {
        # a training that failed is final, a pod that was killed is replaced
        kind: {"replicas": number, "restartPolicy": "ExitCode", "template": template}
        for kind, number in replicas.items()
        if number
    }
    return {
        "apiVersion": PYTORCH_JOBS.api_version,
        "kind": PYTORCH_JOBS.name,
        "metadata": metadata,
        "spec": spec,
    }


def _make_run_policy(plan: Plan, pod: PodSpec) -> Object:
    policy: Object = {"cleanPodPolicy": "None", "backoffLimit": plan.node_restarts}
    if pod.ttl_s is not None:
        policy["ttlSecondsAfterFinished"] = math.ceil(pod.ttl_s)
    if plan.timeout_s is not None:
        policy["activeDeadlineSeconds"] = math.ceil(plan.timeout_s)
    return policy

"""The same training as an Indexed Job with torchrun, and nothing of Windlass in it. Pure.

Pods end when torchrun does. A pod that was taken away is replaced; one whose training failed ends the Job.
"""

from __future__ import annotations

import math
from typing import Any

from windlass import names
from windlass.kube.objects.manifests import pod_of
from windlass.kube.objects.naming import headless_name
from windlass.kube.objects.torchrun_pods import (
    CONTAINER,
    Rendezvous,
    TorchrunPods,
    choose_plain_name,
    make_torchrun_claims,
    make_torchrun_code,
    make_torchrun_metadata,
    make_torchrun_service,
    make_torchrun_template,
)
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSpec

Object = dict[str, Any]

_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"


def make_plain(
    plan: Plan, *, script: str | None, rendezvous: Rendezvous, flags: tuple[str, ...] = ()
) -> list[Object]:
    """ConfigMap, claims, Service and Job, in the order in which they can be applied."""
    pod = pod_of(plan)
    name = choose_plain_name(plan)
    pods = TorchrunPods(
        name=name,
        service=headless_name(name),
        labels={"app": name},
        index_path=_INDEX,
        stays=False,
        rendezvous=rendezvous,
        flags=flags,
        script=script,
    )
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        make_torchrun_service(pod, pods),
        _make_job(plan, pod, pods),
    ]


def _make_job(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> Object:
    metadata = make_torchrun_metadata(pod, pods, pods.name)
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    template = make_torchrun_template(plan, pod, pods)
    template["spec"]["restartPolicy"] = "Never"
    spec: Object = {
        "completionMode": "Indexed",
        "completions": len(plan.nodes),
        "parallelism": len(plan.nodes),
        "backoffLimit": plan.node_restarts,
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]},
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "NotIn",
                        "values": [0],
                    },
                },
            ]
        },
        "template": template,
    }
    if pod.ttl_s is not None:
        spec["ttlSecondsAfterFinished"] = math.ceil(pod.ttl_s)
    if plan.timeout_s is not None:
        spec["activeDeadlineSeconds"] = math.ceil(plan.timeout_s)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}

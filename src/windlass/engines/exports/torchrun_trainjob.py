"""The same training as a TrainJob with torchrun, as the guides of Kubeflow Trainer write it. Pure.

It names the cluster's runtime, whose operator tells torchrun by its variables who is who. What only a runtime
can say, such as a priority or what is tried again, is the cluster's.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.objects.kinds import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS
from windlass.kube.objects.manifests import pod_of
from windlass.kube.objects.pod_template import make_env_from
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

_RUNTIME = "torch-distributed"
_STEP = _CONTAINER = "node"  # of the runtime
_MANAGER = "user.example.com/export"  # who patches must be named, like a label
_OF_TRAINER = {
    "image": "image",
    "command": "command",
    "env": "env",
    "resources": "resourcesPerNode",
}
# all that may be patched of a pod and of its container
_OF_POD = (
    *("serviceAccountName", "volumes", "imagePullSecrets", "securityContext", "nodeSelector"),
    *("affinity", "tolerations", "terminationGracePeriodSeconds"),
)
_OF_CONTAINER = ("name", "volumeMounts", "securityContext")
# what podTemplateOverrides, which came before patches, could not say
_NOT_OVERRIDDEN = ("securityContext", "terminationGracePeriodSeconds")


def make_plain(
    plan: Plan,
    *,
    script: str | None,
    rendezvous: Rendezvous,
    flags: tuple[str, ...] = (),
    is_older: bool = False,
) -> list[Object]:
    """ConfigMap, claims and TrainJob, in the order in which they can be applied.

    `is_older` is for Trainer 2.0 and 2.1.
    """
    pod = pod_of(plan)
    _check(plan, pod, rendezvous)
    pods = make_operator_pods(plan, script, flags, container=_CONTAINER)
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        _make_job(plan, pod, pods, is_older=is_older),
    ]


make_older_plain = partial(make_plain, is_older=True)


def _check(plan: Plan, pod: PodSpec, rendezvous: Rendezvous) -> None:
    """Refuse what a TrainJob cannot say of its pods."""
    hint = f"leave it out, put it into the runtime, or export without --plain: -e {plan.engine}"
    if rendezvous != Rendezvous():
        raise SpecError(
            "where the ranks of a TrainJob meet is for its operator to say",
            hint="leave out --rdzv-backend and --rdzv-endpoint",
        )
    if plan.min_nodes < len(plan.nodes):
        raise SpecError("a TrainJob has a fixed number of nodes", hint="--nodes N, not MIN:MAX")
    unsaid = {
        "--priority-class": pod.priority_class,
        "--patch": pod.patch,
        "--secret NAME": make_env_from(pod),
    }
    for flag, asked in unsaid.items():
        if asked:
            raise SpecError(f"a TrainJob cannot say {flag}: only its runtime can", hint=hint)


def _make_job(plan: Plan, pod: PodSpec, pods: TorchrunPods, *, is_older: bool) -> Object:
    metadata = make_torchrun_metadata(pod, pods, pods.name)
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    template = make_torchrun_template(plan, pod, pods)
    (container,) = template["spec"]["containers"]
    spec: Object = {
        "runtimeRef": {
            "apiGroup": CLUSTER_TRAINING_RUNTIMES.group,
            # a runtime of one's own is in the namespace
            "kind": "TrainingRuntime" if pod.runtime else CLUSTER_TRAINING_RUNTIMES.name,
            "name": pod.runtime or _RUNTIME,
        },
        "trainer": {
            "numNodes": len(plan.nodes),
            "numProcPerNode": plan.nodes[0].num_ranks,
            **{_OF_TRAINER[key]: container[key] for key in _OF_TRAINER if key in container},
        },
        **(_make_overrides(template) if is_older else _make_patches(template)),
    }
    if plan.timeout_s is not None and not is_older:
        spec["activeDeadlineSeconds"] = math.ceil(plan.timeout_s)
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.name,
        "metadata": metadata,
        "spec": spec,
    }


def _make_patches(template: Object) -> Object:
    """What a TrainJob changes of its runtime's pods, since Trainer 2.2."""
    step = {"name": _STEP, "template": {"spec": {"template": _pick(template)}}}
    jobs = {"template": {"spec": {"replicatedJobs": [step]}}}
    return {"runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": jobs}]}


def _make_overrides(template: Object) -> Object:
    """The same for Trainer 2.0 and 2.1, without what those cannot say."""
    said = _pick(template, without=_NOT_OVERRIDDEN)
    return {"podTemplateOverrides": [{"targetJobs": [{"name": _STEP}], **said}]}


def _pick(template: Object, *, without: tuple[str, ...] = ()) -> Object:
    """Of a pod and its container, what a TrainJob may change."""
    pod, (container,) = template["spec"], template["spec"]["containers"]
    own = {key: container[key] for key in _OF_CONTAINER if key in container and key not in without}
    inner = {key: pod[key] for key in _OF_POD if key in pod and key not in without}
    return {"metadata": template["metadata"], "spec": {**inner, "containers": [own]}}

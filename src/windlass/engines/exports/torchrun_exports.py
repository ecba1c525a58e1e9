"""Plain torchrun exports as an Indexed Job, PyTorchJob or TrainJob, following each project's guide.

They run the same training job without Windlass. The functions perform no I/O. `plain_export` maps each engine
to its function.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import delete_after_ttl
from windlass.errors import SpecError
from windlass.kube.objects.kinds import CLUSTER_TRAINING_RUNTIMES, PYTORCH_JOBS, TRAIN_JOBS
from windlass.kube.objects.manifests import pod_of
from windlass.kube.objects.naming import headless_name
from windlass.kube.objects.pod_template import make_env_from
from windlass.kube.objects.torchrun_pods import (
    CONTAINER,
    Rendezvous,
    TorchrunPods,
    choose_plain_name,
    make_operator_pods,
    make_torchrun_claims,
    make_torchrun_code,
    make_torchrun_metadata,
    make_torchrun_service,
    make_torchrun_template,
)
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSpec

Object = dict[str, Any]

_JOB_INDEX = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
_PYTORCHJOB_CONTAINER = "pytorch"  # the operator requires this name
_TRAINJOB_RUNTIME = "torch-distributed"
_TRAINJOB_STEP = _TRAINJOB_CONTAINER = "node"  # names in the runtime
_MANAGER = "user.example.com/export"  # required name of the patches' manager, in label syntax
_OF_TRAINER = {
    "image": "image",
    "command": "command",
    "env": "env",
    "resources": "resourcesPerNode",
}
# All fields of a pod and of its container that can be patched.
_OF_POD = (
    *("serviceAccountName", "volumes", "imagePullSecrets", "securityContext", "nodeSelector"),
    *("affinity", "tolerations", "terminationGracePeriodSeconds"),
)
_OF_CONTAINER = ("name", "volumeMounts", "securityContext")
# Fields that podTemplateOverrides, the predecessor of patches, does not support.
_NOT_OVERRIDDEN = ("securityContext", "terminationGracePeriodSeconds")


def make_plain_job(
    plan: Plan, *, script: str | None, rendezvous: Rendezvous, flags: tuple[str, ...] = ()
) -> list[Object]:
    """Return ConfigMap, claims, Service and Job, in the order to apply them."""
    pod = pod_of(plan)
    name = choose_plain_name(plan)
    pods = TorchrunPods(
        name=name,
        service=headless_name(name),
        labels={"app": name},
        index_path=_JOB_INDEX,
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
    spec |= delete_after_ttl(plan) | _limit_time(plan)
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def make_plain_pytorchjob(
    plan: Plan, *, script: str | None, rendezvous: Rendezvous, flags: tuple[str, ...] = ()
) -> list[Object]:
    """Return ConfigMap, claims and PyTorchJob, in the order to apply them."""
    if rendezvous != Rendezvous():
        raise SpecError(
            "the operator of a PyTorchJob sets its rendezvous",
            hint="omit --rdzv-backend and --rdzv-endpoint",
        )
    pod = pod_of(plan)
    pods = make_operator_pods(plan, script, flags, container=_PYTORCHJOB_CONTAINER)
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        _make_pytorchjob(plan, pod, pods),
    ]


def _make_pytorchjob(plan: Plan, pod: PodSpec, pods: TorchrunPods) -> Object:
    metadata = make_torchrun_metadata(pod, pods, pods.name)
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    template = make_torchrun_template(plan, pod, pods)
    spec: Object = {
        "nprocPerNode": str(plan.nodes[0].num_ranks),
        "runPolicy": _make_pytorchjob_run_policy(plan),
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
        # A failed training is final, and a killed pod is replaced.
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


def _make_pytorchjob_run_policy(plan: Plan) -> Object:
    policy: Object = {"cleanPodPolicy": "None", "backoffLimit": plan.node_restarts}
    return policy | delete_after_ttl(plan) | _limit_time(plan)


def _limit_time(plan: Plan) -> Object:
    """Return the field that ends a job after its time limit, from the start of its first pod."""
    if plan.timeout_s is None:
        return {}
    return {"activeDeadlineSeconds": math.ceil(plan.timeout_s)}


def make_plain_trainjob(
    plan: Plan,
    *,
    script: str | None,
    rendezvous: Rendezvous,
    flags: tuple[str, ...] = (),
    is_older: bool = False,
) -> list[Object]:
    """Return ConfigMap, claims and TrainJob, in the order to apply them.

    `is_older` is for Trainer 2.0 and 2.1.
    """
    pod = pod_of(plan)
    _check_trainjob(plan, pod, rendezvous)
    pods = make_operator_pods(plan, script, flags, container=_TRAINJOB_CONTAINER)
    return [
        *make_torchrun_code(plan, pod, pods),
        *make_torchrun_claims(pod, pods, num_pods=len(plan.nodes)),
        _make_trainjob(plan, pod, pods, is_older=is_older),
    ]


make_older_plain_trainjob = partial(make_plain_trainjob, is_older=True)


def _check_trainjob(plan: Plan, pod: PodSpec, rendezvous: Rendezvous) -> None:
    """Raise `SpecError` for settings of pods that a TrainJob does not support."""
    hint = f"omit it, put it into the runtime, or export without --plain: -e {plan.engine}"
    if rendezvous != Rendezvous():
        raise SpecError(
            "the operator of a TrainJob sets its rendezvous",
            hint="omit --rdzv-backend and --rdzv-endpoint",
        )
    if plan.min_nodes < len(plan.nodes):
        raise SpecError("a TrainJob has a fixed number of nodes", hint="use --nodes N, not MIN:MAX")
    unsupported = {
        "--priority-class": pod.priority_class,
        "--patch": pod.patch,
        "--secret NAME": make_env_from(pod),
    }
    for flag, requested in unsupported.items():
        if requested:
            raise SpecError(f"a TrainJob cannot set {flag}: only its runtime can", hint=hint)


def _make_trainjob(plan: Plan, pod: PodSpec, pods: TorchrunPods, *, is_older: bool) -> Object:
    metadata = make_torchrun_metadata(pod, pods, pods.name)
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    template = make_torchrun_template(plan, pod, pods)
    (container,) = template["spec"]["containers"]
    spec: Object = {
        "runtimeRef": {
            "apiGroup": CLUSTER_TRAINING_RUNTIMES.group,
            # A custom runtime is in the namespace.
            "kind": "TrainingRuntime" if pod.runtime else CLUSTER_TRAINING_RUNTIMES.name,
            "name": pod.runtime or _TRAINJOB_RUNTIME,
        },
        "trainer": {
            "numNodes": len(plan.nodes),
            "numProcPerNode": plan.nodes[0].num_ranks,
            **{_OF_TRAINER[key]: container[key] for key in _OF_TRAINER if key in container},
        },
        **(_make_trainjob_overrides(template) if is_older else _make_trainjob_patches(template)),
    }
    spec |= {} if is_older else _limit_time(plan)
    return {
        "apiVersion": TRAIN_JOBS.api_version,
        "kind": TRAIN_JOBS.name,
        "metadata": metadata,
        "spec": spec,
    }


def _make_trainjob_patches(template: Object) -> Object:
    """Return the changes to the runtime's pods, for Trainer 2.2 and later."""
    step = {"name": _TRAINJOB_STEP, "template": {"spec": {"template": _pick(template)}}}
    jobs = {"template": {"spec": {"replicatedJobs": [step]}}}
    return {"runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": jobs}]}


def _make_trainjob_overrides(template: Object) -> Object:
    """Return the changes to the runtime's pods that Trainer 2.0 and 2.1 support."""
    picked = _pick(template, without=_NOT_OVERRIDDEN)
    return {"podTemplateOverrides": [{"targetJobs": [{"name": _TRAINJOB_STEP}], **picked}]}


def _pick(template: Object, *, without: tuple[str, ...] = ()) -> Object:
    """Return the fields of a pod and its container that a TrainJob may change."""
    pod, (container,) = template["spec"], template["spec"]["containers"]
    own = {key: container[key] for key in _OF_CONTAINER if key in container and key not in without}
    inner = {key: pod[key] for key in _OF_POD if key in pod and key not in without}
    return {"metadata": template["metadata"], "spec": {**inner, "containers": [own]}}

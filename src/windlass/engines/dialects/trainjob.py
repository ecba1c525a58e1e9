"""Dialect `trainjob`: nodes are the pods of a TrainJob of Kubeflow Trainer 2.

This module performs no I/O. It is the only one that knows about TrainJobs. Operators turn a TrainJob into a
JobSet, an Indexed Job, and pods. Only the runtime can define retries, so each job has its own copy of the
chosen runtime. In the copy, the pod of Windlass is merged into the runtime's, lost pods are replaced, and a
failed job becomes Failed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import (
    JOB_FAILURES,
    LABEL_JOB_INDEX,
    Adoption,
    Dialect,
    ObjectPhase,
    Prerequisite,
    allow_missing_pods,
    is_suspended,
    limit_time,
    make_hold_reader,
    make_main_object,
    read_condition_end,
    read_index_in_name,
    read_index_label,
)
from windlass.errors import SpecError
from windlass.kube.client.access import END_LOST_PODS, Need, Right
from windlass.kube.objects.fields import Object, controller_name_of, labels_of, name_of
from windlass.kube.objects.kinds import CLUSTER_TRAINING_RUNTIMES, TRAIN_JOBS, TRAINING_RUNTIMES
from windlass.kube.objects.manifests import FileNames, make_metadata, pod_of
from windlass.kube.objects.naming import make_annotations
from windlass.kube.objects.pod_template import apply_patch, make_template
from windlass.plan.plan import Plan
from windlass.spec.storage import SecretVariable

RUNTIME = "torch-distributed"
CONTAINER = STEP = "node"  # names that the operator requires for the trainer's container and job
LABEL_INDEX = LABEL_JOB_INDEX
LABEL_JOBSET = "jobset.sigs.k8s.io/jobset-name"  # its value is the TrainJob's name
LABEL_STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
LABEL_FRAMEWORK = "trainer.kubeflow.org/framework"
RESERVED = (
    *(names.PET_NNODES, names.PET_NPROC_PER_NODE, names.PET_NODE_RANK),
    *(names.PET_MASTER_ADDR, names.PET_MASTER_PORT),
)
SHIPPED: Mapping[str, Object] = {
    RUNTIME: {
        "metadata": {"name": RUNTIME, "labels": {LABEL_FRAMEWORK: "torch"}},
        "spec": {
            "mlPolicy": {"numNodes": 1, "torch": {}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {
                            "name": STEP,
                            "template": {
                                "metadata": {"labels": {LABEL_STEP: "trainer"}},
                                "spec": {"template": {"spec": {"containers": []}}},
                            },
                        }
                    ]
                }
            },
        },
    }
}
_UNSTARTABLE = (126, 127, 128)  # the image lacks the program, so other pods fail too
_KUEUE_PREFIX = "trainjob-"  # prefix of the names of its Workloads
_OF_TRAINER = {
    "image": "image",
    "command": "command",
    "env": "env",
    "resources": "resourcesPerNode",
}
_NOT_OURS = ("args", "workingDir", "livenessProbe", "readinessProbe", "startupProbe", "lifecycle")


def render(plan: Plan, files: FileNames, submit: str = "") -> dict[str, Any]:
    """Return the suspended TrainJob: the trainer's command and its number of nodes.

    All other settings are in its runtime.
    """
    pod = pod_of(plan)
    ttl = {} if pod.ttl_s is None else {names.ANNOTATION_TTL: str(math.ceil(pod.ttl_s))}
    container = _make_template(plan, files)["spec"]["containers"][0]
    spec: dict[str, Any] = {
        "suspend": True,
        "runtimeRef": {
            "apiGroup": TRAINING_RUNTIMES.group,
            "kind": TRAINING_RUNTIMES.name,
            "name": plan.job_id,
        },
        "trainer": {
            "numNodes": len(plan.nodes),
            "numProcPerNode": plan.nodes[0].num_ranks,
            **{_OF_TRAINER[key]: container[key] for key in _OF_TRAINER if key in container},
        },
        **limit_time(plan),
    }
    return make_main_object(plan, submit, TRAIN_JOBS, spec, annotations=ttl)


def render_runtime(plan: Plan, files: FileNames, submit: str, source: Object) -> dict[str, Any]:
    """Return the job's own runtime: the chosen one with the pod merged in. Windlass handles restarts."""
    metadata = make_metadata(plan, plan.job_id, annotations=make_annotations(plan, submit))
    # Kubeflow's SDK ignores runtimes without this label.
    if framework := labels_of(source).get(LABEL_FRAMEWORK):
        metadata["labels"][LABEL_FRAMEWORK] = framework
    source = _without_launcher(source)
    jobset = source["spec"]["template"]
    steps = [
        _make_step(plan, files, step) if step is _find_trainer(source) else step
        for step in jobset["spec"]["replicatedJobs"]
    ]
    # A JobSet that restarts would end pods that the lead still uses.
    inner = {key: value for key, value in jobset["spec"].items() if key != "failurePolicy"}
    return {
        "apiVersion": TRAINING_RUNTIMES.api_version,
        "kind": TRAINING_RUNTIMES.name,
        "metadata": metadata,
        "spec": {
            **source["spec"],
            "template": {**jobset, "spec": {**inner, "replicatedJobs": steps}},
        },
    }


def _without_launcher(runtime: Object) -> Object:
    """Return a runtime of MPI, such as deepspeed-distributed, as one whose nodes need no launcher.

    Its nodes are the pods that the launcher would reach by ssh. Agents start their ranks by themselves, so
    neither the launcher nor the server for ssh is needed.
    """
    spec = runtime["spec"]
    policy, jobset = spec.get("mlPolicy") or {}, spec["template"]["spec"]
    steps = [step for step in jobset["replicatedJobs"] if step.get("name") == STEP]
    if "mpi" not in policy or not steps:
        return runtime
    label = {"metadata": {"labels": {LABEL_STEP: "trainer"}}}
    node = {**steps[0], "template": apply_patch(steps[0].get("template") or {}, label)}
    kept = {key: value for key, value in jobset.items() if key != "successPolicy"}
    template = {**spec["template"], "spec": {**kept, "replicatedJobs": [node]}}
    count = {"numNodes": policy.get("numNodes") or 1}
    return {**runtime, "spec": {**spec, "mlPolicy": {**count, "torch": {}}, "template": template}}


def _find_trainer(runtime: Object) -> Object:
    """Return the step of a runtime that the job's step replaces."""
    policy = runtime["spec"].get("mlPolicy") or {}
    for step in runtime["spec"]["template"]["spec"]["replicatedJobs"]:
        labels = labels_of(step.get("template") or {})
        is_trainer = labels.get(LABEL_STEP) == "trainer" and step.get("name") == STEP
        if is_trainer and "flux" not in policy:
            trainer: Object = step
            return trainer
    raise SpecError(
        f"the runtime {name_of(runtime)} has no step {STEP!r} whose pods are the nodes",
        hint=f"choose a runtime for torchrun with --runtime; the default is {RUNTIME}",
    )


def _make_step(plan: Plan, files: FileNames, step: Object) -> dict[str, Any]:
    job = step["template"]
    template = _make_template(plan, files)
    ours = template["spec"]["containers"][0]
    ours = {key: value for key, value in ours.items() if key not in _OF_TRAINER}
    patch = {
        **template,
        "spec": {
            **template["spec"],
            "containers": [
                {**ours, **dict.fromkeys(_NOT_OURS)},
                *template["spec"]["containers"][1:],
            ],
        },
    }
    policy: dict[str, Any] = {
        "backoffLimit": None,
        "backoffLimitPerIndex": plan.node_restarts,
        "maxFailedIndexes": 0,
        "podReplacementPolicy": "Failed",  # the only value allowed with a podFailurePolicy
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": CONTAINER,
                        "operator": "In",
                        "values": [names.EXIT_FAILED_WORK, *_UNSTARTABLE],
                    },
                }
            ]
        },
        **allow_missing_pods(plan),
    }
    return {**step, "template": apply_patch(job, {"spec": {**policy, "template": patch}})}


def _make_template(plan: Plan, files: FileNames) -> dict[str, Any]:
    """Return the pod template. The JobSet names the pods, and their Job reads their exit codes."""
    for secret in pod_of(plan).secrets:
        if isinstance(secret, SecretVariable) and secret.variable in RESERVED:
            raise SpecError(
                f"{secret.variable} is set by Kubeflow Trainer in every pod of a TrainJob",
                hint="use another variable for the Secret's value",
            )
    template = make_template(
        plan,
        files,
        env={
            names.ENV_TELLS_FAILURE: names.TELLS_BY_LEAD,
            names.ENV_FORGET: ",".join(RESERVED),  # meant for another torchrun
        },
        env_fields={names.NODE_FAILURES: JOB_FAILURES},
        container=CONTAINER,
    )
    del template["spec"]["subdomain"]
    return template


def read_phase(job: Object) -> ObjectPhase:
    """Return the phase from its counts of Jobs. A Job is ready when all its pods are."""
    if read_condition_end(job) is not None:
        return ObjectPhase.ENDED
    counts = job.get("status", {}).get("jobsStatus") or ()
    if any(of.get(kind) for of in counts for kind in ("ready", "succeeded", "failed")):
        return ObjectPhase.STARTED
    return ObjectPhase.HELD if is_suspended(job) else ObjectPhase.WAITING


def owns(pod: Object, _uid: str) -> bool:
    """Return whether the Job of the pod's TrainJob controls it. The TrainJob itself does not."""
    return controller_name_of(pod) == f"{labels_of(pod).get(LABEL_JOBSET)}-{STEP}-0"


index_of = read_index_label(LABEL_INDEX)
index_in_name = read_index_in_name(rf"(?P<job>.+)-{STEP}-0-(?P<index>\d+)-[a-z0-9]{{5}}")


TRAINJOB = Dialect(
    name="trainjob",
    kind=TRAIN_JOBS,
    can=frozenset({"detach", "restarts", "timeout", "pods", "keys", "ends", "runtime"}),
    needs=(
        Need(kind=TRAIN_JOBS, product="Kubeflow Trainer 2"),
        Need(kind=TRAINING_RUNTIMES, product="Kubeflow Trainer 2"),
    ),
    newer_fields={"spec.activeDeadlineSeconds": {"spec": {"activeDeadlineSeconds": None}}},
    more_rights=(
        Right(
            group=TRAINING_RUNTIMES.group,
            resource=TRAINING_RUNTIMES.plural,
            verbs=("get", "list", "create", "patch", "delete"),
            purpose="each job's own copy of its runtime, which defines its retries",
        ),
        END_LOST_PODS,
        replace(END_LOST_PODS, resource="pods/status", verbs=("patch",)),
    ),
    operator="Kubeflow Trainer",
    prerequisite=Prerequisite(
        kind=TRAINING_RUNTIMES,
        sources=(TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES),
        source_name=lambda plan: pod_of(plan).runtime or RUNTIME,
        shipped=SHIPPED,
        render=render_runtime,
    ),
    render=render,
    start={"spec": {"suspend": False}},
    suspend={"spec": {"suspend": True}},
    give_up={},  # its podFailurePolicy does this
    end_lost_pod={"status": {"phase": "Failed", "reason": "NodeLost"}},  # its Job waits for this
    read_end=read_condition_end,
    read_phase=read_phase,
    num_pods=lambda job: int((job.get("spec", {}).get("trainer") or {}).get("numNodes") or 1),
    read_hold=make_hold_reader(_KUEUE_PREFIX),
    pod_maker=lambda job: ("Job", f"{name_of(job)}-{STEP}-0"),
    lead_labels={LABEL_INDEX: "0"},
    index_of=index_of,
    index_in_name=index_in_name,
    owns=owns,
    host_name=f"{{job_id}}-{STEP}-0-{{index}}.{{job_id}}",
    container=CONTAINER,
    adoption=Adoption(
        pod_labels=lambda name: {LABEL_JOBSET: name}, index_of=lambda _job, pod: index_of(pod)
    ),
)

"""Jobs, their events and runtimes, in the form of the v2 SDK.

A job's record combines its status and plan and, on a cluster, its pods and events. Runtimes are those of a
cluster with Kubeflow Trainer, or a single built-in one. The copies of runtimes that jobs own are not
listed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.trainjob import CONTAINER, LABEL_FRAMEWORK, RUNTIME
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import Forbidden
from windlass.kube.objects.fields import Object, event_first_s, labels_of, name_of
from windlass.kube.objects.kinds import CLUSTER_TRAINING_RUNTIMES, EVENTS, PODS, TRAINING_RUNTIMES
from windlass.near_names import did_you_mean
from windlass.plan.plan import Plan
from windlass.trainer.sdk_errors import WrongArgument
from windlass.trainer.statuses import TrainerJob, name_v2
from windlass.trainer.types import (
    UNKNOWN,
    Event,
    Runtime,
    RuntimeKind,
    RuntimeTrainer,
    Step,
    TrainerType,
    TrainJob,
)
from windlass.wire.states import NodeState
from windlass.wire.status import JobStatus, NodeStatus, Phase

_BUILTIN = "torchtune"
_FRAMEWORK = "torch"
_NODE = "node"
_PENDING, _RUNNING, _SUCCEEDED, _FAILED = "Pending", "Running", "Succeeded", "Failed"


def make_runtime(name: str, *, image: str, num_nodes: int = 1) -> Runtime:
    """Create a runtime from its name, image and node count."""
    trainer = RuntimeTrainer(
        trainer_type=TrainerType.CUSTOM_TRAINER,
        framework=_FRAMEWORK,
        image=image,
        num_nodes=num_nodes,
    )
    return Runtime(name=name, trainer=trainer, kind=RuntimeKind.CLUSTER_TRAINING_RUNTIME)


def list_runtimes(api: Api | None, *, image: str) -> list[Runtime]:
    """Return runtimes, the namespace's first. Without an API, return the built-in one."""
    if api is None:
        return [make_runtime(RUNTIME, image=image)]
    runtimes: dict[str, Runtime] = {}
    for kind in (TRAINING_RUNTIMES, CLUSTER_TRAINING_RUNTIMES):
        with contextlib.suppress(Forbidden):  # listing cluster runtimes may not be allowed
            for body in api.list(kind):
                if names.LABEL_JOB not in labels_of(body) and labels_of(body).get(LABEL_FRAMEWORK):
                    runtimes.setdefault(name_of(body), read_runtime(body))
    return list(runtimes.values())


def find_runtime(wanted: str | Runtime | None, runtimes: list[Runtime]) -> Runtime:
    """Return the runtime of that name, or raise WrongArgument."""
    name = RUNTIME if wanted is None else str(getattr(wanted, "name", wanted))
    for runtime in runtimes:
        if runtime.name == name:
            return runtime
    known = [runtime.name for runtime in runtimes]
    hint = did_you_mean(name, known) if known else "ask a cluster administrator to create one"
    raise WrongArgument(f"unknown runtime {name!r}", hint=hint)


def read_runtime(body: Object) -> Runtime:
    """Read a (Cluster)TrainingRuntime of the cluster."""
    framework = labels_of(body).get(LABEL_FRAMEWORK, UNKNOWN)
    is_builtin = framework == _BUILTIN
    container = _find_container(body)
    device, count = read_device(container.get("resources", {}).get("limits") or {})
    trainer = RuntimeTrainer(
        trainer_type=TrainerType.BUILTIN_TRAINER if is_builtin else TrainerType.CUSTOM_TRAINER,
        framework=framework,
        image=str(container.get("image", "")),
        num_nodes=int((body["spec"].get("mlPolicy") or {}).get("numNodes") or 1),
        device=device,
        device_count=count,
    )
    return Runtime(name=name_of(body), trainer=trainer, kind=RuntimeKind(body["kind"]))


def read_device(resources: Mapping[str, Any]) -> tuple[str, str]:
    """Return the kind of device in a node's resources, and how many there are."""
    for name, amount in resources.items():
        if "gpu" in name or "/" in name:
            return "gpu", str(amount)
    return ("cpu", str(resources["cpu"])) if resources.get("cpu") else (UNKNOWN, UNKNOWN)


def _find_container(body: Object) -> Object:
    for step in body["spec"].get("template", {}).get("spec", {}).get("replicatedJobs") or ():
        pod = step.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
        for container in pod.get("containers") or ():
            if container.get("name") == CONTAINER:
                trainer: Object = container
                return trainer
    return {}


def make_train_job(known: TrainerJob, api: Api | None, dialect: Dialect | None) -> TrainJob:
    """Return the current record of a job. `api` and `dialect` are set for a cluster."""
    status = known.job.status()
    plan = None if is_adopted(status) else known.engine.plan(known.job.ref)
    pods = _find_pods(status, api, dialect)
    device, count = _find_device(plan)
    train_job = TrainJob(
        name=known.name,
        runtime=make_runtime(
            (plan.pod.runtime if plan and plan.pod else "") or RUNTIME,
            image=plan.pod.image if plan and plan.pod else "",
            num_nodes=status.num_nodes,
        ),
        steps=[
            Step(
                name=f"{_NODE}-{node.index}",
                status=_name_state(status, node, pods),
                pod_name=pods[node.index][0] if node.index in pods else node.name,
                device=device,
                device_count=count,
            )
            for node in status.nodes
        ],
        num_nodes=status.num_nodes,
        creation_timestamp=_at(status.created_at_s),
        status=name_v2(status),
    )
    train_job.bind(known.job)
    return train_job


def is_adopted(status: JobStatus) -> bool:
    """Return whether the job was created by kubectl or the SDK instead of Windlass."""
    return any(condition.reason == names.REASON_ADOPTED for condition in status.conditions)


def list_events(known: TrainerJob, api: Api | None, dialect: Dialect | None) -> list[Event]:
    """Return a job's cluster events, oldest first. Without a cluster, return its timeline."""
    if api is None or dialect is None:
        moments = known.job.status().timeline
        return [_make_event("Job", known.name, str(m.name), "", m.at_s) for m in moments]
    job_id = known.job.id
    events = (event for event in api.list(EVENTS) if _is_about(event, job_id, dialect))
    return [
        _make_event(
            str(event["involvedObject"].get("kind", "")),
            str(event["involvedObject"].get("name", "")),
            str(event.get("reason", "")),
            str(event.get("message", "")),
            event_first_s(event),
        )
        for event in sorted(events, key=event_first_s)
    ]


def _is_about(event: Object, job_id: str, dialect: Dialect) -> bool:
    """Return whether an event is about the job's object, the object that makes pods, or one of its pods."""
    involved = event.get("involvedObject", {})
    kind, name = involved.get("kind"), str(involved.get("name", ""))
    if kind == "Pod":
        return dialect.index_in_name(name, job_id) is not None
    made = dialect.pod_maker({"metadata": {"name": job_id}}) if dialect.pod_maker else ("", "")
    return name == job_id or (kind, name) == made


def _make_event(kind: str, name: str, reason: str, message: str, at_s: float) -> Event:
    return Event(
        involved_object_kind=kind,
        involved_object_name=name,
        message=message or reason,
        reason=reason,
        event_time=_at(at_s),
    )


def _find_pods(
    status: JobStatus, api: Api | None, dialect: Dialect | None
) -> dict[int, tuple[str, str]]:
    """Return the name and phase of each node's newest pod."""
    if api is None or dialect is None:
        return {}
    labels = {names.LABEL_JOB: status.job_id}
    if is_adopted(status) and dialect.adoption:
        labels = dict(dialect.adoption.pod_labels(status.job_id))
    selector = ",".join(f"{key}={value}" for key, value in labels.items())
    pods = sorted(api.list(PODS, labels=selector), key=_created)
    return {
        index: (name_of(pod), str(pod.get("status", {}).get("phase", "")))
        for pod in pods
        if (index := dialect.index_of(pod)) is not None
    }


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _name_state(status: JobStatus, node: NodeStatus, pods: Mapping[int, tuple[str, str]]) -> str:
    """Return a node's state as a pod phase. A finished job's nodes have its state, since pods end later."""
    if status.phase is Phase.SUCCEEDED:
        return _SUCCEEDED
    if status.phase.is_final or node.state == NodeState.LOST:
        return _FAILED
    if node.index in pods:
        return pods[node.index][1]
    return _RUNNING if node.state in (NodeState.JOINED, NodeState.READY) else _PENDING


def _find_device(plan: Plan | None) -> tuple[str, str]:
    pod = plan.pod if plan else None
    if pod is None:
        return read_device({})
    return read_device({"gpu": pod.gpus} if pod.gpus else {"cpu": pod.cpus})


def _at(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)

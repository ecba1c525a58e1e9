"""MonarchMesh of Monarch's own workers, and a controller pod for the script that uses them.

This module performs no I/O. It follows Monarch's guide. The controller may list the workers' pods, and finds
them by the labels that the operator sets. It runs a script that the user copies into it with `kubectl cp`.
The documents contain no code.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.objects.kinds import MONARCH_MESHES
from windlass.kube.objects.manifests import pod_of
from windlass.kube.objects.naming import object_name
from windlass.kube.objects.torchrun_pods import (
    Rendezvous,
    TorchrunPods,
    make_torchrun_claims,
    make_torchrun_metadata,
    make_torchrun_template,
)
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSpec

Object = dict[str, Any]

NAME = "ddpmesh"
NAMESPACE = "monarch-tests"
PORT = names.MONARCH_PORT
_MAX_NAME = 45
_RBAC = "rbac.authorization.k8s.io"
_WORKER = f"""\
import socket
from monarch.actor import run_worker_loop_forever
address = f"tcp://{{socket.getfqdn()}}:{PORT}@tcp://0.0.0.0:{PORT}"
run_worker_loop_forever(address=address, ca="trust_all_connections")
"""
# Without a handler for SIGTERM, process 1 would run until the end of its grace period.
_WAIT = "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"


def make_plain(
    plan: Plan,
    *,
    script: str | None,  # noqa: ARG001 - users copy it into the controller
    rendezvous: Rendezvous,
    flags: tuple[str, ...] = (),  # noqa: ARG001 - there is no torchrun
) -> list[Object]:
    """Return the controller's rights, claims, mesh and controller, in the order to apply them."""
    _check(plan, rendezvous)
    pod = pod_of(plan)
    pod = replace(pod, namespace=pod.namespace or NAMESPACE)
    name = _find_name(plan)
    workers = TorchrunPods(
        name=name,
        service="",
        labels={"app": name},
        index_path="",
        container="worker",
        command=("python", "-u", "-c", _WORKER),
        env=[{"name": "MONARCH_PORT", "value": str(PORT)}],
    )
    own = f"{name.removesuffix('mesh') or name}-controller"
    controller = replace(
        workers,  # it mounts the claims of these workers
        labels={"app": own},
        container="controller",
        command=("/bin/sh", "-c", _WAIT),
        env=[],
    )
    return [
        *_make_rights(pod, controller, own),
        *make_torchrun_claims(pod, workers, num_pods=len(plan.nodes)),
        _make_mesh(plan, pod, workers),
        _make_controller(plan, pod, controller, own),
    ]


def _check(plan: Plan, rendezvous: Rendezvous) -> None:
    if rendezvous != Rendezvous():
        raise SpecError(
            "Monarch's workers find each other through their controller",
            hint="omit --rdzv-backend and --rdzv-endpoint",
        )
    if plan.min_nodes < len(plan.nodes):
        raise SpecError(
            "a MonarchMesh has a fixed number of hosts", hint="use --nodes N, not MIN:MAX"
        )


def _find_name(plan: Plan) -> str:
    """Return the letters and digits of the job's name, as Monarch requires, or the guide's name."""
    if plan.name == plan.job_id:
        return NAME
    return re.sub("[^a-z0-9]", "", object_name(plan.name, _MAX_NAME)) or NAME


def _make_rights(pod: PodSpec, controller: TorchrunPods, name: str) -> list[Object]:
    """Return a service account for the controller, which may only read pods."""
    metadata = make_torchrun_metadata(pod, controller, name)
    rule = {"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"]}
    account = {"kind": "ServiceAccount", "name": name, "namespace": pod.namespace}
    role = {"apiGroup": _RBAC, "kind": "Role", "name": name}
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": metadata,
            "subjects": [account],
            "roleRef": role,
        },
    ]


def _make_mesh(plan: Plan, pod: PodSpec, workers: TorchrunPods) -> Object:
    metadata = make_torchrun_metadata(pod, workers, workers.name)
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    return {
        "apiVersion": MONARCH_MESHES.api_version,
        "kind": MONARCH_MESHES.name,
        "metadata": metadata,
        "spec": {
            "replicas": len(plan.nodes),
            "port": PORT,
            "podTemplate": make_torchrun_template(plan, pod, workers),
        },
    }


def _make_controller(plan: Plan, pod: PodSpec, controller: TorchrunPods, name: str) -> Object:
    """Return a pod with the image and mounts of the workers, without GPUs or placement rules."""
    alone = replace(pod, gpus=0, gpu_type="", spread="none", pack="", service_account=name)
    template = make_torchrun_template(plan, alone, controller)
    (container, *more) = template["spec"]["containers"]
    folder = {"workingDir": "/tmp"}  # noqa: S108 - of the pod: Monarch keeps its state where it runs
    template["spec"]["containers"] = [{**container, **folder}, *more]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            **make_torchrun_metadata(pod, controller, name),
            **template["metadata"],
        },
        "spec": template["spec"],
    }

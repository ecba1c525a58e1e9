"""Hosts of a Monarch mesh that Windlass did not start, found in the same way as Monarch's own clients do.

Lists pods in the cluster of the kubeconfig, or in the cluster that this process runs in. The caller must
be able to reach the pods by their addresses. This module does not import Monarch.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass import names
from windlass.errors import EngineError
from windlass.kube.client.api import connect
from windlass.kube.objects.fields import Object, labels_of, name_of, read_index
from windlass.kube.objects.kinds import PODS

_WORKER = "monarch-worker"
# set by a StatefulSet and by an Indexed Job
_RANK_LABELS = ("apps.kubernetes.io/pod-index", "batch.kubernetes.io/job-completion-index")
_PORT_VARIABLE = "MONARCH_PORT"


def find_hosts(mesh_name: str, selector: str, namespace: str) -> list[str]:
    """Return the addresses of a mesh's workers in rank order. Raise unless all of them are ready."""
    wanted = selector or f"{names.LABEL_APP}={_WORKER},{names.LABEL_MESH}={mesh_name}"
    api = connect(namespace=namespace)
    pods = api.list(PODS, labels=wanted)
    if not pods:
        raise EngineError(
            f"no pod of {api.namespace} has the labels {wanted}",
            hint=f"run `kubectl get pods -n {api.namespace} --show-labels` to list the pods' labels",
        )
    return make_addresses(pods)


def make_addresses(pods: Sequence[Object]) -> list[str]:
    """Return the worker addresses of these pods, ordered by the index in each pod's labels."""
    live = [pod for pod in pods if not _is_over(pod)]
    by_index = {_read_rank(pod): pod for pod in sorted(live, key=_created)}
    if not by_index:
        raise EngineError(
            f"all pods of the mesh have ended, including {name_of(pods[0])}",
            hint="start the mesh again, or wait for the pods that replace them",
        )
    late = [name_of(pod) for pod in by_index.values() if not _is_ready(pod)]
    missing = [index for index in range(len(by_index)) if index not in by_index]
    if late or missing:
        what = f"pod {late[0]} is not ready" if late else f"no pod has index {missing[0]}"
        raise EngineError(
            f"the mesh is not complete: {what}", hint="wait for the pod and try again"
        )
    return [_make_address(by_index[i]) for i in sorted(by_index)]


def _is_over(pod: Object) -> bool:
    """Return whether the pod has ended or is being deleted. Another pod replaces it."""
    is_deleted = "deletionTimestamp" in pod["metadata"]
    return is_deleted or pod.get("status", {}).get("phase") in ("Failed", "Succeeded")


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp", ""))


def _make_address(pod: Object) -> str:
    host = pod["status"]["podIP"]
    return f"tcp://{f'[{host}]' if ':' in host else host}:{_read_port(pod)}"


def _read_rank(pod: Object) -> int:
    labels = labels_of(pod)
    for label in _RANK_LABELS:
        index = read_index(labels.get(label, ""))
        if index is not None:
            return index
    raise EngineError(
        f"pod {name_of(pod)} has no index label",
        hint=f"label the pod with {' or '.join(_RANK_LABELS)}",
    )


def _is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions", ())
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def _read_port(pod: Object) -> int:
    for container in pod["spec"]["containers"]:
        for variable in container.get("env", ()):
            if variable["name"] == _PORT_VARIABLE and variable.get("value", "").isdecimal():
                return int(variable["value"])
    return names.MONARCH_PORT

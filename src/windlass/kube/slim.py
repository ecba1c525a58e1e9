"""What is kept of pods and nodes: as much as anybody here reads, a third of what an API server sends. Pure.

A job may have a thousand pods, and each says at length who set which of its fields when. Who reads another
field of a pod or a node adds it here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass import names
from windlass.kube.fields import annotations_of

Object = dict[str, Any]

_METADATA = (
    *("name", "namespace", "uid", "resourceVersion", "labels", "creationTimestamp"),
    *("deletionTimestamp", "ownerReferences"),
)
_POD_SPEC = ("nodeName", "nodeSelector")
_CONTAINER = ("name", "image", "resources")
_POD_STATUS = (
    *("phase", "reason", "message", "conditions", "startTime"),
    *("containerStatuses", "initContainerStatuses"),
)
_NODE_SPEC = ("taints", "unschedulable")
_NODE_STATUS = ("allocatable", "conditions")


def slim_pod(pod: Object) -> Object:
    """A pod without what nobody reads."""
    spec = pod.get("spec") or {}
    containers = {
        key: [_pick(container, _CONTAINER) for container in spec.get(key) or ()]
        for key in ("containers", "initContainers")
        if spec.get(key)
    }
    claims = [v for v in spec.get("volumes") or () if v.get("persistentVolumeClaim")]
    kept = {**_pick(spec, _POD_SPEC), **containers, **({"volumes": claims} if claims else {})}
    head = _head(pod)
    if marks := _pick(annotations_of(pod), (names.ANNOTATION_CONTAINER,)):
        head["metadata"]["annotations"] = marks
    return {**head, "spec": kept, "status": _pick(pod.get("status") or {}, _POD_STATUS)}


def slim_node(node: Object) -> Object:
    """A node's size, taints and state."""
    return {
        **_head(node),
        "spec": _pick(node.get("spec") or {}, _NODE_SPEC),
        "status": _pick(node.get("status") or {}, _NODE_STATUS),
    }


def slim_any(thing: Object) -> Object:
    """Anything without its account of who set which field."""
    metadata = thing.get("metadata") or {}
    return {**thing, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def _head(thing: Object) -> Object:
    return {
        **_pick(thing, ("apiVersion", "kind")),
        "metadata": _pick(thing.get("metadata") or {}, _METADATA),
    }


def _pick(body: Mapping[str, Any], keys: Sequence[str]) -> Object:
    return {key: body[key] for key in keys if key in body}

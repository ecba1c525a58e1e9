"""Readers for the fields of pods, jobs and events, and the fields that watches keep. No I/O.

Reads times, conditions and container states. The `slim_*` functions keep only the fields that this
package and the engines read, about a third of what an API server sends. A job may have a thousand pods,
and each pod has long `managedFields`. Code that reads another field of a pod or a node must add it to
these functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from windlass import names

Object = Mapping[str, Any]
WatchedObject = dict[str, Any]

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


def read_time(text: str | None) -> float | None:
    """Return a Kubernetes time as Unix seconds. Return None for the zero time, which means never."""
    if not text:
        return None
    seconds = datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()
    return seconds if seconds > 0 else None


def name_of(body: Object) -> str:
    return str(body.get("metadata", {}).get("name", ""))


def uid_of(body: Object) -> str:
    return str(body.get("metadata", {}).get("uid", ""))


def controller_of(body: Object) -> str:
    """Return the UID of an object's controller, or an empty string."""
    owners: Sequence[Object] = body.get("metadata", {}).get("ownerReferences") or ()
    return next((str(owner.get("uid", "")) for owner in owners if owner.get("controller")), "")


def controller_name_of(body: Object) -> str:
    """Return the name of an object's controller, or an empty string."""
    owners: Sequence[Object] = body.get("metadata", {}).get("ownerReferences") or ()
    return next((str(owner.get("name", "")) for owner in owners if owner.get("controller")), "")


def is_controlled_by(body: Object, uid: str) -> bool:
    """Return whether the object's controller has this UID."""
    return bool(uid) and controller_of(body) == uid


def labels_of(body: Object) -> Mapping[str, str]:
    return body.get("metadata", {}).get("labels") or {}


def annotations_of(body: Object) -> Mapping[str, str]:
    return body.get("metadata", {}).get("annotations") or {}


def created_s(body: Object) -> float:
    return read_time(body.get("metadata", {}).get("creationTimestamp")) or 0.0


def deleted_s(body: Object) -> float | None:
    return read_time(body.get("metadata", {}).get("deletionTimestamp"))


def condition_of(body: Object, kind: str) -> Object:
    """Return the condition of a type, or an empty dict."""
    conditions: Sequence[Object] = body.get("status", {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def is_true(condition: Object) -> bool:
    return condition.get("status") == "True"


def read_index(text: str) -> int | None:
    """Parse a node's index from a label or a part of a name. Return None if it is not a number."""
    return int(text) if text.isdecimal() else None


def container_of(pod: Object) -> Object:
    """Return the status of Windlass's container, or else of the first one.

    The status is empty until the kubelet reports one.
    """
    return _ours(pod, pod.get("status", {}).get("containerStatuses") or ())


def started_s(pod: Object) -> float | None:
    """Return the start time of the current container, or of the last one."""
    state = container_of(pod).get("state", {})
    inside = state.get("running") or state.get("terminated") or {}
    return read_time(inside.get("startedAt"))


def container_spec_of(pod: Object) -> Object:
    return _ours(pod, pod.get("spec", {}).get("containers") or ())


def log_container_of(pod: Object, name: str) -> str:
    """Return the name of the container to read logs from: `name` if the pod has it, else the pod's first.

    If the pod lists no containers, return `name`.
    """
    containers = [str(one.get("name")) for one in pod.get("spec", {}).get("containers") or ()]
    return name if name in containers or not containers else containers[0]


def _ours(pod: Object, containers: Sequence[Object]) -> Object:
    marked = annotations_of(pod).get(names.ANNOTATION_CONTAINER, names.CONTAINER)
    ours = [c for c in containers if c.get("name") == marked] or containers
    return ours[0] if ours else {}


def container_states(pod: Object) -> list[Object]:
    """Return the statuses of all containers, init containers first, because any of them may block a pod."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def event_first_s(event: Object) -> float:
    """Return the time when an event first occurred. Counted and uncounted events use different fields."""
    return _first_time(event, "eventTime", "firstTimestamp", "lastTimestamp") or created_s(event)


def event_last_s(event: Object) -> float:
    series = read_time((event.get("series") or {}).get("lastObservedTime"))
    return series or _first_time(event, "lastTimestamp", "eventTime") or created_s(event)


def _first_time(body: Object, *keys: str) -> float | None:
    return next((at_s for key in keys if (at_s := read_time(body.get(key)))), None)


def events_of(events: Iterable[Object], kind: str, name: str, *reasons: str) -> list[Object]:
    """Return the events of one object with any of `reasons` (default: all), oldest first."""
    events_here = [
        event
        for event in events
        if event.get("involvedObject", {}).get("kind") == kind
        and event["involvedObject"].get("name") == name
        and (not reasons or event.get("reason") in reasons)
    ]
    return sorted(events_here, key=event_last_s)


def group_events(events: Iterable[Object], kind: str) -> Mapping[str, Sequence[Object]]:
    """Group the events of a kind by object name, to avoid scanning them for each of a thousand pods."""
    by_name: dict[str, list[Object]] = {}
    for event in events:
        involved = event.get("involvedObject", {})
        if involved.get("kind") == kind:
            by_name.setdefault(str(involved.get("name", "")), []).append(event)
    return by_name


def slim_pod(pod: WatchedObject) -> WatchedObject:
    """Return a pod with only the fields that Windlass reads."""
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


def slim_node(node: WatchedObject) -> WatchedObject:
    """Return a node with only its size, taints and conditions."""
    return {
        **_head(node),
        "spec": _pick(node.get("spec") or {}, _NODE_SPEC),
        "status": _pick(node.get("status") or {}, _NODE_STATUS),
    }


def slim_any(thing: WatchedObject) -> WatchedObject:
    """Return an object without its `managedFields`."""
    metadata = thing.get("metadata") or {}
    return {**thing, "metadata": {k: v for k, v in metadata.items() if k != "managedFields"}}


def _head(thing: WatchedObject) -> WatchedObject:
    return {
        **_pick(thing, ("apiVersion", "kind")),
        "metadata": _pick(thing.get("metadata") or {}, _METADATA),
    }


def _pick(body: Mapping[str, Any], keys: Sequence[str]) -> WatchedObject:
    return {key: body[key] for key in keys if key in body}

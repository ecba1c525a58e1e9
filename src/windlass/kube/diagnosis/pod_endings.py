"""Diagnoses of pods that did not start or that ended, and records of a job's dead pods.

These functions are pure. They turn a pod's JSON into one reason and one sentence. A container fails
to start without its image, Secret, user or program. A pod ends when it exits, runs out of memory, is
evicted, preempted or drained, or loses its node. A pod that is being deleted has an ending as soon as
Kubernetes reports it, which is before its processes are gone. Other modules decide about a restart.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windlass import names
from windlass.kube.diagnosis.blocker import (
    CONTAINER_CONFIG,
    CRASH_LOOP,
    IMAGE_NAME,
    IMAGE_PULL,
    NODE_LOST,
    RUNTIME_REFUSED,
    START_ERROR,
)
from windlass.kube.diagnosis.pod_scheduling import Diagnosis
from windlass.kube.objects.fields import (
    Object,
    condition_of,
    container_of,
    container_spec_of,
    container_states,
    created_s,
    deleted_s,
    event_last_s,
    is_true,
    labels_of,
    name_of,
    read_time,
    started_s,
)
from windlass.kube.objects.pod_template import pull_policy
from windlass.processes import signal_name
from windlass.wire.states import MomentName
from windlass.wire.status import FailureKind, Moment

_PULL = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "RegistryUnavailable")
_NAMES = ("InvalidImageName", "ImageInspectError")
_CONFIG = ("CreateContainerConfigError", "CreateContainerError", "RunContainerError")
# The text in front of the registry's own message.
_PREAMBLE = re.compile(
    r'^(?:Back-off pulling image "[^"]*":? ?|ErrImagePull: |'
    r'(?:rpc error: code = \w+ desc = )|failed to pull and unpack image "[^"]*": |'
    r'failed to resolve reference "[^"]*": |failed to do request: )+'
)
_PORTS = re.compile(r"read \w+ \S+->\S+: ")  # ports of one attempt, useless in a message
_NAME_PREAMBLE = re.compile(
    r'^(?:Failed to \w+ [^"]*"[^"]*": |couldn\'t parse image name "[^"]*": )+'
)
_PULL_HINTS = (
    (
        ("unauthorized", "denied", "forbidden", "authorization", "401", "403"),
        "the registry requires a login: name the Secret with its credentials with --pull-secret",
    ),
    (
        ("not found", "manifest unknown", "does not exist"),
        "no such image or tag exists: correct --image",
    ),
    (
        ("toomanyrequests", "429"),
        "the registry's rate limit was hit: the pull is retried, or log in with --pull-secret",
    ),
    (
        ("no such host", "timeout", "refused", "unreachable", "lookup", "x509", "tls"),
        "the nodes cannot reach the registry: check the host in --image, or ask an admin for a reachable one",
    ),
    (("no space left",), "the node's disk is full: ask a cluster administrator"),
)
OUT_OF_MEMORY = "OutOfMemory"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
DRAINED = "Drained"
NODE_STOPPED = "NodeStopped"
DELETED = "Deleted"
REFUSED = "RefusedByNode"
KILLED = "Killed"
EXITED = "Exited"
COMPLETED = "Completed"

# Reasons in conditions of type DisruptionTarget, for pods that were removed through no fault of their own.
_DISRUPTIONS: Mapping[str, tuple[str, str]] = {
    "PreemptionByScheduler": (PREEMPTED, "was preempted: a pod of higher priority took its place"),
    "DeletionByTaintManager": (NODE_LOST, "was removed: its node does not answer or is tainted"),
    "EvictionByEvictionAPI": (DRAINED, "was evicted: its node is being drained"),
    "DeletionByPodGC": (NODE_LOST, "was removed: its node is gone"),
    "TerminationByKubelet": (NODE_STOPPED, "was stopped by its node"),
}
_KINDS: Mapping[str, FailureKind] = {
    OUT_OF_MEMORY: FailureKind.OUT_OF_MEMORY,
    START_ERROR: FailureKind.START_FAILED,
    KILLED: FailureKind.KILLED,
    EXITED: FailureKind.USER_ERROR,
}
_START_ERRORS = (START_ERROR, "ContainerCannotRun", "RunContainerError")
_REFUSALS = re.compile(r"(OutOf.+|UnexpectedAdmissionError|NodeAffinity|TopologyAffinityError)")
_RESOURCE = re.compile(
    r"low on resource: ([^\s.]+)|(EmptyDir volume|ephemeral local storage|limit)"
)
# Events that report the end of a pod that has since been deleted.
_DELETION_EVENTS: Mapping[str, tuple[str, str]] = {
    "Preempted": (PREEMPTED, "was preempted"),
    "Evicted": (EVICTED, "was evicted"),
    "TaintManagerEviction": (NODE_LOST, "was removed from its node"),
    "NodeNotReady": (NODE_LOST, "was lost: its node does not answer"),
}


def diagnose_container(pod: Object) -> Diagnosis | None:
    """Return why a container of the pod cannot start, or None if no problem is known."""
    for status in container_states(pod):
        waiting = status.get("state", {}).get("waiting") or {}
        reason, text = str(waiting.get("reason", "")), _flat(waiting.get("message"))
        image = _requested_image(pod, str(status.get("name", ""))) or str(status.get("image", ""))
        if reason in _PULL:
            return _diagnose_pull(image, text, reason)
        if reason in _NAMES:
            message = f'"{image}" is not a valid image name: {_NAME_PREAMBLE.sub("", text)}'
            hint = "write --image as HOST/NAME:TAG, with a lowercase name"
            return Diagnosis(reason=IMAGE_NAME, message=message, hint=hint)
        if reason in _CONFIG:
            return diagnose_start(image, text) or _diagnose_config(text, reason)
        if reason == "CrashLoopBackOff":
            return _diagnose_crash(status)
    return None


def diagnose_start(image: str, text: str) -> Diagnosis | None:
    """Return the diagnosis if the image lacks the program or the program cannot be run."""
    if match := re.search(r'exec: "([^"]+)": (.*?)(?:: unknown)?$', text):
        program, why = match.groups()
        return Diagnosis(
            reason=START_ERROR,
            message=f'the image {image} has no "{program}" that can be run: {why}',
            hint="use an image with Python 3.10 or later, or pass its path with --python",
        )
    if "OCI runtime" in text or "shim task" in text:
        message = f"the container of {image} cannot be started: {text}"
        hint = "ask a cluster administrator: the node's container runtime refused it"
        return Diagnosis(reason=RUNTIME_REFUSED, message=message, hint=hint)
    return None


def _diagnose_pull(image: str, text: str, reason: str) -> Diagnosis:
    words = _PORTS.sub("", _PREAMBLE.sub("", text))
    lower = words.lower()
    hint = next((h for marks, h in _PULL_HINTS if any(m in lower for m in marks)), "")
    if reason == "ErrImageNeverPull":
        words, hint = "it is not on the node, and its policy forbids a pull", "correct --image"
    elif pull_policy(image) == "Always":
        hint = (
            f"{hint or 'check --image'}; nodes look up a tag that can move in the registry at every start: "
            "with a fixed version they use the image that they already have"
        )
    message = f"the image {image} cannot be pulled{f': {words}' if words else ''}"
    return Diagnosis(reason=IMAGE_PULL, message=message, hint=hint or "check --image")


def _diagnose_config(text: str, reason: str) -> Diagnosis:
    hint = "correct it with --secret, --env or --patch"
    if match := re.search(r'(secret|configmap) "([^"]+)" not found', text):
        kind, name = match.groups()
        message = f'{kind} "{name}" not found in the job\'s namespace'
        hint = f"create it (`kubectl create {kind} ...`), or correct its name in --secret"
    elif match := re.search(r"couldn't find key (\S+) in (Secret|ConfigMap) (\S+)", text):
        key, kind, name = match.groups()
        message = f'the {kind.lower()} {name} has no key "{key}"'
        hint = f"`kubectl describe {kind.lower()} {name.split('/')[-1]}` shows its keys; correct --secret"
    elif "runAsNonRoot" in text:
        message = "the image runs as root, which the pod's rules forbid"
        hint = "set a user ID with --run-as, such as --run-as 1000"
    else:
        message = f"the container cannot be created: {text or reason}"
    return Diagnosis(reason=CONTAINER_CONFIG, message=message, hint=hint)


def _diagnose_crash(status: Object) -> Diagnosis:
    last = (status.get("lastState") or {}).get("terminated") or {}
    words = describe_exit(last)
    message = (
        f"the container ends as soon as it starts, {status.get('restartCount', 0)} times: {words}"
    )
    return Diagnosis(
        reason=CRASH_LOOP, message=message, hint="run `windlass logs JOB` to see its last lines"
    )


def describe_exit(terminated: Object) -> str:
    """Return a text such as `exit code 1`, with the container's last line if Kubernetes kept it."""
    lines = str(terminated.get("message") or "").strip().splitlines()
    code = f"exit code {terminated.get('exitCode', '?')}"
    return f"{code}, {lines[-1].strip()}" if lines else code


def image_of(pod: Object) -> str:
    """Return the image in the pod's spec, because a node may report it under another name."""
    return str(container_spec_of(pod).get("image") or container_of(pod).get("image", ""))


def _requested_image(pod: Object, container: str) -> str:
    spec = pod.get("spec", {})
    containers = (*(spec.get("initContainers") or ()), *(spec.get("containers") or ()))
    return next(
        (str(one.get("image", "")) for one in containers if one.get("name") == container), ""
    )


def _flat(text: object) -> str:
    return " ".join(str(text or "").split())


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """End of a pod. Programs match on `reason`. `message` is a sentence with the node's name."""

    reason: str
    message: str
    exit_code: int | None = None
    at_s: float | None = None

    @property
    def is_good(self) -> bool:
        return self.reason == COMPLETED

    @property
    def kind(self) -> FailureKind:
        """Failure kind of the ending. Anything that removed a healthy pod counts as a lost node."""
        return _KINDS.get(self.reason, FailureKind.LOST_NODE)


def read_ending(pod: Object) -> Ending | None:
    """Return how the pod ended or is about to end, or None if it is waiting or running normally."""
    terminated = container_of(pod).get("state", {}).get("terminated") or {}
    phase = pod.get("status", {}).get("phase")
    cause = _read_disruption(pod) or _read_status(pod) or _read_terminated(pod, terminated)
    if cause is None and deleted_s(pod) is not None and phase not in ("Succeeded", "Failed"):
        cause = (DELETED, "was deleted")
    if cause is None and phase == "Failed":
        cause = (
            NODE_STOPPED,
            f"failed: {pod['status'].get('message') or 'no reason is given'}",
        )
    if cause is None:
        return None
    code = terminated.get("exitCode")
    at_s = read_time(terminated.get("finishedAt")) or _disrupted_s(pod) or deleted_s(pod)
    message = f"pod {name_of(pod)}{on_node(pod)} {cause[1]}"
    return Ending(reason=cause[0], message=message, exit_code=code, at_s=at_s)


def is_deleted_with_its_node(pod: Object) -> bool:
    """Return whether the pod is being deleted because of its node and has not ended yet."""
    ending = read_ending(pod)
    has_ended = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    is_deleted = ending is not None and ending.reason == NODE_LOST and deleted_s(pod) is not None
    return is_deleted and not has_ended


def on_node(pod: Object) -> str:
    """Return ``" on node n1"``, or an empty string for a pod that never had a node."""
    node = pod.get("spec", {}).get("nodeName")
    return f" on node {node}" if node else ""


def _read_disruption(pod: Object) -> tuple[str, str] | None:
    """Read why Kubernetes disrupted the pod. This is more precise than the resulting exit code."""
    condition = condition_of(pod, "DisruptionTarget")
    if not is_true(condition) or pod.get("status", {}).get("phase") == "Succeeded":
        return None
    if _is_evicted(pod):
        return _describe_eviction(pod)
    reason = str(condition.get("reason", ""))
    known = _DISRUPTIONS.get(reason)
    return known or (NODE_STOPPED, f"was removed: {condition.get('message') or reason}")


def _disrupted_s(pod: Object) -> float | None:
    return read_time(condition_of(pod, "DisruptionTarget").get("lastTransitionTime"))


def _is_evicted(pod: Object) -> bool:
    return bool(pod.get("status", {}).get("reason") == "Evicted")


def _describe_eviction(pod: Object) -> tuple[str, str]:
    why = " ".join(str(pod["status"].get("message", "")).split()).rstrip(".")
    return EVICTED, f"was evicted: {_name_resource(why)}{why or 'the node gave no reason'}"


def _name_resource(why: str) -> str:
    match = _RESOURCE.search(why)
    if match is None:
        return ""
    if match[1]:
        return f"its node ran out of {match[1]}. "
    return "it exceeded its storage limit. "


def _read_status(pod: Object) -> tuple[str, str] | None:
    """Read the ending from the pod's own status, not from its container."""
    status = pod.get("status", {})
    reason = str(status.get("reason") or "")
    if _is_evicted(pod):
        return _describe_eviction(pod)
    if reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        return NODE_LOST, f"was lost with its node: {status.get('message') or reason}"
    if status.get("phase") == "Unknown":
        return NODE_LOST, "is unreachable: its node does not answer"
    if status.get("phase") == "Failed" and _REFUSALS.fullmatch(reason):
        return REFUSED, f"was refused by the node: {status.get('message') or reason}"
    if reason == "DeadlineExceeded":
        return DELETED, "was stopped: the Job's deadline passed"
    return None


def _read_terminated(pod: Object, terminated: Object) -> tuple[str, str] | None:
    if not terminated:
        return None
    reason, code = str(terminated.get("reason", "")), int(terminated.get("exitCode", 0))
    text = " ".join(str(terminated.get("message", "")).split())
    if reason == "OOMKilled":
        return OUT_OF_MEMORY, f"ran out of memory{_memory_limit(pod)}"
    if reason in _START_ERRORS:
        diagnosis = diagnose_start(image_of(pod), text)
        words = diagnosis.message if diagnosis else text or reason
        return START_ERROR, f"could not be started: {words}"
    is_ours = names.LABEL_JOB in labels_of(pod)
    if code == 0 or (is_ours and code == names.EXIT_FAILED_WORK):
        return COMPLETED, "completed"
    if code > 128 or terminated.get("signal"):
        name = signal_name(int(terminated.get("signal") or code - 128))
        return KILLED, f"was killed by {name}"
    return EXITED, f"exited with code {code}{f': {text}' if text else ''}"


def _memory_limit(pod: Object) -> str:
    limit = container_spec_of(pod).get("resources", {}).get("limits", {}).get("memory")
    return f": its limit is {limit}" if limit else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPod:
    """Pod of a job that ended with a failure."""

    index: int
    name: str
    ending: Ending
    created_s: float | None = None  # None for a deleted pod

    @property
    def ended_s(self) -> float | None:
        return self.ending.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIndexes:
    """Functions that return a pod's node index, from the pod or, if it was deleted, from its name."""

    of_pod: Callable[[Object], int | None]
    of_name: Callable[[str], int | None]

    def or_else(self, by_name: Mapping[str, int]) -> PodIndexes:
        """Return functions that fall back on a mapping from pod names, which callers may update later."""

        def of_pod(pod: Object) -> int | None:
            index = self.of_pod(pod)
            return by_name.get(name_of(pod)) if index is None else index

        def of_name(name: str) -> int | None:
            index = self.of_name(name)
            return by_name.get(name) if index is None else index

        return PodIndexes(of_pod=of_pod, of_name=of_name)


def read_dead_pods(
    pods: Sequence[Object], events: Sequence[Object] = (), *, indexes: PodIndexes
) -> tuple[DeadPod, ...]:
    """Return the pods of a job that ended with a failure, oldest first.

    `events` may be those of the whole namespace.
    """
    dead = [
        DeadPod(index=index, name=name_of(pod), ending=ending, created_s=created_s(pod) or None)
        for pod in pods
        if (index := indexes.of_pod(pod)) is not None
        and (ending := read_ending(pod)) is not None
        and not ending.is_good
    ]
    dead.sort(key=lambda pod: (pod.created_s or 0.0, pod.name))
    dead += _read_gone(pods, events, indexes)
    dead.sort(key=lambda pod: pod.ended_s or pod.created_s or 0.0)
    return tuple(dead)


_CLOCKS_DIFFER_S = 2.0  # the API server has another clock and rounds to whole seconds


def timeline(
    pods: Sequence[Object],
    *,
    indexes: PodIndexes,
    num_nodes: int = 0,
    joined_at_s: float | None = None,
) -> list[Moment]:
    """Return when the last needed pod was queued, scheduled, had its image, and had its container running.

    A moment is left out until every node has reached it. A node that lost its pod keeps the times of its
    first pod. `num_nodes` is the number of needed nodes (default: the number of pods). At `joined_at_s` all
    nodes had joined, so later moments belong to replacement pods and are left out.
    """
    passed: dict[MomentName, dict[int, float]] = {moment: {} for moment in _MOMENTS}
    for pod in pods:
        if (index := indexes.of_pod(pod)) is None:
            continue
        for moment, read in _MOMENTS.items():
            if at_s := read(pod):
                passed[moment][index] = min(at_s, passed[moment].get(index, at_s))
    needed = num_nodes or len(passed[MomentName.QUEUED])
    moments: list[Moment] = []
    for moment, times in passed.items():
        if not times or len(times) < needed:
            break
        # The clocks of kubelet and API server differ, so keep the times in order.
        at_s = max((*times.values(), *(before.at_s for before in moments)))
        if joined_at_s is not None and at_s > joined_at_s + _CLOCKS_DIFFER_S:
            break
        moments.append(Moment(name=moment, at_s=at_s))
    return moments


def _scheduled_s(pod: Object) -> float | None:
    condition = condition_of(pod, "PodScheduled")
    return read_time(condition.get("lastTransitionTime")) if is_true(condition) else None


# The image's time is unknown. The start of the container is its upper bound.
_MOMENTS: Mapping[MomentName, Callable[[Object], float | None]] = {
    MomentName.QUEUED: created_s,
    MomentName.SCHEDULED: _scheduled_s,
    MomentName.IMAGE: started_s,
    MomentName.CONTAINER: started_s,
}


def _read_gone(
    pods: Sequence[Object], events: Sequence[Object], indexes: PodIndexes
) -> Iterator[DeadPod]:
    """Yield the pods that were deleted, from the events about their end."""
    present = {name_of(pod) for pod in pods}
    last_events: dict[str, tuple[Object, int]] = {}
    for event, index in _events_of_pods(pods, events, indexes):
        if (
            event["involvedObject"]["name"] not in present
            and event.get("reason") in _DELETION_EVENTS
        ):
            last_events[event["involvedObject"]["name"]] = (event, index)
    for name, (event, index) in last_events.items():
        reason, words = _DELETION_EVENTS[event["reason"]]
        message = f"pod {name} {words}: {' '.join(str(event.get('message', '')).split())}"
        ending = Ending(reason=reason, message=message, at_s=event_last_s(event))
        yield DeadPod(index=index, name=name, ending=ending)


def _events_of_pods(
    pods: Sequence[Object], events: Iterable[Object], indexes: PodIndexes
) -> Iterator[tuple[Object, int]]:
    """Yield the events of the job's pods, including deleted ones, if the job still has a pod."""
    if not pods:
        return
    for event in events:
        involved = event.get("involvedObject", {})
        index = indexes.of_name(str(involved.get("name", "")))
        if involved.get("kind") == "Pod" and index is not None:
            yield event, index

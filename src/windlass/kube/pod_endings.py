"""How a pod ended: out of memory, evicted, preempted, drained, its node lost, exited, or never started.

Pure: a pod's JSON in, one reason and one plain sentence out. A pod that is being taken away has an ending as
soon as Kubernetes says so, which is before its processes are gone. Nothing here decides about a restart.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass

from windlass import names
from windlass.kube.containers import diagnose_start, image_of
from windlass.kube.fields import (
    Object,
    condition_of,
    container_of,
    container_spec_of,
    deleted_s,
    is_true,
    labels_of,
    name_of,
    read_time,
)
from windlass.wire.status import FailureKind

OUT_OF_MEMORY = "OutOfMemory"
EVICTED = "Evicted"
PREEMPTED = "Preempted"
DRAINED = "Drained"
NODE_LOST = "NodeLost"
NODE_STOPPED = "NodeStopped"
DELETED = "Deleted"
REFUSED = "RefusedByNode"
START_ERROR = "StartError"
KILLED = "Killed"
EXITED = "Exited"
COMPLETED = "Completed"

# Conditions of type DisruptionTarget: why a pod that did nothing wrong had to go.
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
_START_ERRORS = ("StartError", "ContainerCannotRun", "RunContainerError")
_REFUSALS = re.compile(r"(OutOf.+|UnexpectedAdmissionError|NodeAffinity|TopologyAffinityError)")
_RESOURCE = re.compile(
    r"low on resource: ([^\s.]+)|(EmptyDir volume|ephemeral local storage|limit)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a pod is no more. `reason` is for programs, `message` is one sentence with the node's name."""

    reason: str
    message: str
    exit_code: int | None = None
    at_s: float | None = None

    @property
    def is_good(self) -> bool:
        return self.reason == COMPLETED

    @property
    def kind(self) -> FailureKind:
        """Whose fault it was; whatever took a healthy pod away counts as a lost node."""
        return _KINDS.get(self.reason, FailureKind.LOST_NODE)


def read_ending(pod: Object) -> Ending | None:
    """How this pod ended or is being ended; None for one that waits or runs undisturbed."""
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


def is_taken_with_its_node(pod: Object) -> bool:
    """Whether it was asked to go because of its node, and has not said that it has gone."""
    ending = read_ending(pod)
    has_gone = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    is_asked = ending is not None and ending.reason == NODE_LOST and deleted_s(pod) is not None
    return is_asked and not has_gone


def on_node(pod: Object) -> str:
    """`` on node n1``, or nothing for a pod that never had one."""
    node = pod.get("spec", {}).get("nodeName")
    return f" on node {node}" if node else ""


def _read_disruption(pod: Object) -> tuple[str, str] | None:
    """What Kubernetes says it did to the pod; more to the point than the exit code that followed."""
    condition = condition_of(pod, "DisruptionTarget")
    if not is_true(condition) or pod.get("status", {}).get("phase") == "Succeeded":
        return None
    if _is_evicted(pod):
        return _describe_eviction(pod)
    reason = str(condition.get("reason", ""))
    known = _DISRUPTIONS.get(reason)
    return known or (NODE_STOPPED, f"was taken away: {condition.get('message') or reason}")


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
    return "it wrote more than it may. "


def _read_status(pod: Object) -> tuple[str, str] | None:
    """What the pod's own status says, apart from its container."""
    status = pod.get("status", {})
    reason = str(status.get("reason") or "")
    if _is_evicted(pod):
        return _describe_eviction(pod)
    if reason in ("NodeLost", "NodeShutdown", "Terminated", "Shutdown"):
        return NODE_LOST, f"was lost with its node: {status.get('message') or reason}"
    if status.get("phase") == "Unknown":
        return NODE_LOST, "is out of sight: its node does not answer"
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
        said = diagnose_start(image_of(pod), text)
        words = said.message if said else text or reason
        return START_ERROR, f"could not be started: {words}"
    is_ours = names.LABEL_JOB in labels_of(pod)
    if code == 0 or (is_ours and code == names.EXIT_FAILED_WORK):
        return COMPLETED, "completed"
    if code > 128 or terminated.get("signal"):
        name = _signal_name(int(terminated.get("signal") or code - 128))
        return KILLED, f"was killed by {name}"
    return EXITED, f"exited with code {code}{f': {text}' if text else ''}"


def _memory_limit(pod: Object) -> str:
    limit = container_spec_of(pod).get("resources", {}).get("limits", {}).get("memory")
    return f": its limit is {limit}" if limit else ""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"

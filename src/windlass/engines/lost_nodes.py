"""Why a node was lost, which its lead cannot know: what the cluster shows of the node's pods. Pure."""

from __future__ import annotations

from dataclasses import replace

from windlass.kube.diagnosis.pod_endings import DeadPod
from windlass.wire.status import FailureKind, Verdict

_ENDING_S = 120.0  # how far apart a loss and a pod's end may be to be the same
_EXPLAINING = (FailureKind.OUT_OF_MEMORY, FailureKind.LOST_NODE)


def is_unexplained(verdict: Verdict) -> bool:
    return verdict.kind is FailureKind.LOST_NODE and verdict.node is not None


def explain_loss(verdict: Verdict, dead: tuple[DeadPod, ...]) -> Verdict:
    """The same verdict with what took the node away, where pods that ended near it tell."""
    if not is_unexplained(verdict):
        return verdict
    near = [
        pod
        for pod in dead
        if pod.index == verdict.node and _seconds_apart(pod, verdict) < _ENDING_S
    ]
    if not near:
        return verdict
    pod = min(near, key=lambda pod: (_seconds_apart(pod, verdict), -(pod.created_s or 0.0)))
    # that it was ended by a signal is no more than its lead knew
    if pod.ending.message in verdict.message or pod.ending.kind not in _EXPLAINING:
        return verdict
    message = f"{verdict.message.partition(':')[0]}: {pod.ending.message}"
    return replace(verdict, kind=pod.ending.kind, message=message)


def _seconds_apart(pod: DeadPod, verdict: Verdict) -> float:
    """Between a pod's end and a loss. Not always is its time told: that of an evicted one may be missing."""
    if pod.ended_s is not None:
        return abs(pod.ended_s - verdict.at_s)
    return 0.0 if pod.created_s is not None and pod.created_s <= verdict.at_s else _ENDING_S

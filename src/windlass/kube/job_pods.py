"""The pods of a job as records: how those ended that ended badly, and when nodes passed which moment.

Pure: JSON of pods and events in, records out. Pods that are gone are known from their events alone, which
Kubernetes keeps for an hour. What holds a pod up is in blockers.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windlass.kube.fields import (
    Object,
    condition_of,
    created_s,
    event_last_s,
    is_true,
    name_of,
    read_time,
    started_s,
)
from windlass.kube.pod_endings import EVICTED, NODE_LOST, PREEMPTED, Ending, read_ending
from windlass.wire.states import MomentName
from windlass.wire.status import Moment

# Events that tell how a pod ended which is no longer there.
_LAST_WORDS: Mapping[str, tuple[str, str]] = {
    "Preempted": (PREEMPTED, "was preempted"),
    "Evicted": (EVICTED, "was evicted"),
    "TaintManagerEviction": (NODE_LOST, "was removed from its node"),
    "NodeNotReady": (NODE_LOST, "was lost: its node does not answer"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadPod:
    """One pod of a job that ended badly."""

    index: int
    name: str
    ending: Ending
    created_s: float | None = None  # not of one that is gone

    @property
    def ended_s(self) -> float | None:
        return self.ending.at_s


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIndexes:
    """Which node a pod of one job is: by the pod itself, or by its name once it is gone."""

    of_pod: Callable[[Object], int | None]
    of_name: Callable[[str], int | None]

    def or_told(self, told: Mapping[str, int]) -> PodIndexes:
        """The same; where that is nothing, what was told of pods by their names, also later."""

        def of_pod(pod: Object) -> int | None:
            index = self.of_pod(pod)
            return told.get(name_of(pod)) if index is None else index

        def of_name(name: str) -> int | None:
            index = self.of_name(name)
            return told.get(name) if index is None else index

        return PodIndexes(of_pod=of_pod, of_name=of_name)


def read_dead_pods(
    pods: Sequence[Object], events: Sequence[Object] = (), *, indexes: PodIndexes
) -> tuple[DeadPod, ...]:
    """The pods of a job that ended badly, oldest first. `events` may be those of the whole namespace."""
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


_CLOCKS_DIFFER_S = 2.0  # times of the API server are whole seconds of another clock


def timeline(
    pods: Sequence[Object],
    *,
    indexes: PodIndexes,
    num_nodes: int = 0,
    joined_at_s: float | None = None,
) -> list[Moment]:
    """When the last needed pod was queued, scheduled, had its image, and had its container running.

    A moment that some node has not passed is left out. A node that lost its pod keeps the time of its first
    one. `num_nodes` is how many nodes are needed; 0: as many as there are pods. What came after all nodes had
    joined, at `joined_at_s`, belongs to pods that replaced others, and is left out.
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
        # The kubelet's clock is not the API server's: no step goes back.
        at_s = max((*times.values(), *(before.at_s for before in moments)))
        if joined_at_s is not None and at_s > joined_at_s + _CLOCKS_DIFFER_S:
            break
        moments.append(Moment(name=moment, at_s=at_s))
    return moments


def _scheduled_s(pod: Object) -> float | None:
    condition = condition_of(pod, "PodScheduled")
    return read_time(condition.get("lastTransitionTime")) if is_true(condition) else None


# An image is there by the start of its container at the latest.
_MOMENTS: Mapping[MomentName, Callable[[Object], float | None]] = {
    MomentName.QUEUED: created_s,
    MomentName.SCHEDULED: _scheduled_s,
    MomentName.IMAGE: started_s,
    MomentName.CONTAINER: started_s,
}


def _read_gone(
    pods: Sequence[Object], events: Sequence[Object], indexes: PodIndexes
) -> Iterator[DeadPod]:
    """Pods that are no longer there, from what events say of their end."""
    there = {name_of(pod) for pod in pods}
    told: dict[str, tuple[Object, int]] = {}
    for event, index in _events_of_pods(pods, events, indexes):
        if event["involvedObject"]["name"] not in there and event.get("reason") in _LAST_WORDS:
            told[event["involvedObject"]["name"]] = (event, index)
    for name, (event, index) in told.items():
        reason, words = _LAST_WORDS[event["reason"]]
        message = f"pod {name} {words}: {' '.join(str(event.get('message', '')).split())}"
        ending = Ending(reason=reason, message=message, at_s=event_last_s(event))
        yield DeadPod(index=index, name=name, ending=ending)


def _events_of_pods(
    pods: Sequence[Object], events: Iterable[Object], indexes: PodIndexes
) -> Iterator[tuple[Object, int]]:
    """Events of this job's pods, also of those that are gone, as long as it has any."""
    if not pods:
        return
    for event in events:
        involved = event.get("involvedObject", {})
        index = indexes.of_name(str(involved.get("name", "")))
        if involved.get("kind") == "Pod" and index is not None:
            yield event, index

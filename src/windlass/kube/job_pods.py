"""The pods of a job as records: the newest of each node, when it passed which moment, and how others ended.

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
    event_first_s,
    event_last_s,
    events_of,
    group_events,
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
_STEPS = (
    (MomentName.SCHEDULED, "Scheduled"),
    (MomentName.IMAGE, "Pulled"),
    (MomentName.CONTAINER, "Started"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """One pod of a job: where it is, when it passed what, and how it ended if it did."""

    index: int
    name: str
    node_name: str  # of the Kubernetes node; empty before it has one
    phase: str  # Pending, Running, Succeeded, Failed, Unknown, Gone
    created_s: float | None = None
    scheduled_s: float | None = None
    image_s: float | None = None
    started_s: float | None = None
    ended_s: float | None = None
    ending: Ending | None = None

    @property
    def is_alive(self) -> bool:
        return self.ending is None and self.phase in ("Pending", "Running")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodsSeen:
    """All pods of a job: the newest of each node index, and every one that ended badly, oldest first."""

    newest: Mapping[int, PodSeen]
    dead: tuple[PodSeen, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodIndexes:
    """Which node a pod of one job is: by the pod itself, or by its name once it is gone."""

    of_pod: Callable[[Object], int | None]
    of_name: Callable[[str], int | None]


def read_pods(
    pods: Sequence[Object], events: Sequence[Object] = (), *, indexes: PodIndexes
) -> PodsSeen:
    """What is known of a job's pods. `events` may be those of the whole namespace."""
    told = group_events(events, "Pod")
    seen = sorted(
        (
            _read_pod(pod, index, told.get(name_of(pod), ()))
            for pod in pods
            if (index := indexes.of_pod(pod)) is not None
        ),
        key=lambda pod: (pod.created_s or 0.0, pod.name),
    )
    newest = {pod.index: pod for pod in seen}
    dead = [pod for pod in seen if pod.ending is not None and not pod.ending.is_good]
    dead += _read_gone(pods, events, indexes)
    dead.sort(key=lambda pod: pod.ended_s or pod.created_s or 0.0)
    return PodsSeen(newest=newest, dead=tuple(dead))


def timeline(
    pods: Sequence[Object],
    events: Sequence[Object] = (),
    *,
    indexes: PodIndexes,
    num_nodes: int = 0,
) -> list[Moment]:
    """When the last needed pod was queued, scheduled, had its image, and had its container running.

    A moment that some node has not passed is left out. A node that lost its pod keeps the time of its first
    one. `num_nodes` is how many nodes are needed; 0: as many as there are pods.
    """
    passed: dict[MomentName, dict[int, float]] = {MomentName.QUEUED: {}}
    for moment, index, at_s in _read_moments(pods, events, indexes):
        times = passed.setdefault(moment, {})
        times[index] = min(at_s, times.get(index, at_s))
    needed = num_nodes or len(passed[MomentName.QUEUED])
    found: list[Moment] = []
    for moment in (MomentName.QUEUED, *(name for name, _ in _STEPS)):
        times = passed.get(moment, {})
        if not times or len(times) < needed:
            break
        # The API server's times are whole seconds, those of events are finer: no step goes back.
        at_s = max((*times.values(), *(before.at_s for before in found)))
        found.append(Moment(name=moment, at_s=at_s))
    return found


def _read_pod(pod: Object, index: int, events: Sequence[Object]) -> PodSeen:
    ending = read_ending(pod)
    return PodSeen(
        index=index,
        name=name_of(pod),
        node_name=str(pod.get("spec", {}).get("nodeName") or ""),
        phase=str(pod.get("status", {}).get("phase") or "Pending"),
        created_s=created_s(pod) or None,
        scheduled_s=_scheduled_s(pod),
        image_s=_image_s(pod, events),
        started_s=started_s(pod),
        ended_s=ending.at_s if ending else None,
        ending=ending,
    )


def _scheduled_s(pod: Object) -> float | None:
    condition = condition_of(pod, "PodScheduled")
    return read_time(condition.get("lastTransitionTime")) if is_true(condition) else None


def _image_s(pod: Object, events: Sequence[Object]) -> float | None:
    """When the image was there: an event says it; without one, by the container's start at the latest."""
    pulled = events_of(events, "Pod", name_of(pod), "Pulled")
    return event_first_s(pulled[0]) if pulled else started_s(pod)


def _read_moments(
    pods: Sequence[Object], events: Sequence[Object], indexes: PodIndexes
) -> Iterator[tuple[MomentName, int, float]]:
    for pod in pods:
        if (index := indexes.of_pod(pod)) is None:
            continue
        moments = (
            (MomentName.QUEUED, created_s(pod)),
            (MomentName.SCHEDULED, _scheduled_s(pod)),
            (MomentName.IMAGE, started_s(pod)),
            (MomentName.CONTAINER, started_s(pod)),
        )
        yield from ((moment, index, at_s) for moment, at_s in moments if at_s)
    names = {reason: moment for moment, reason in _STEPS}
    for event, index in _events_of_pods(pods, events, indexes):
        if moment := names.get(str(event.get("reason"))):
            yield moment, index, event_first_s(event)


def _read_gone(
    pods: Sequence[Object], events: Sequence[Object], indexes: PodIndexes
) -> Iterator[PodSeen]:
    """Pods that are no longer there, from what events say of their end."""
    there = {name_of(pod) for pod in pods}
    told: dict[str, tuple[Object, int]] = {}
    for event, index in _events_of_pods(pods, events, indexes):
        if event["involvedObject"]["name"] not in there and event.get("reason") in _LAST_WORDS:
            told[event["involvedObject"]["name"]] = (event, index)
    for name, (event, index) in told.items():
        reason, words = _LAST_WORDS[event["reason"]]
        at_s = event_last_s(event)
        message = f"pod {name} {words}: {' '.join(str(event.get('message', '')).split())}"
        ending = Ending(reason=reason, message=message, at_s=at_s)
        yield PodSeen(
            index=index, name=name, node_name="", phase="Gone", ended_s=at_s, ending=ending
        )


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

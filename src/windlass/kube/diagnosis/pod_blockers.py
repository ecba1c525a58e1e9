"""Blockers of a job's pods, most important first, each with one sentence for the user.

These functions are pure. They take the JSON of pods, events and other readable objects, and return blockers.
The dialect itself finds out whether its main object is held. Other modules display the blockers and decide
whether to keep waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from windlass.kube.diagnosis import blocker as reasons
from windlass.kube.diagnosis.blocker import Blocker
from windlass.kube.diagnosis.pod_endings import (
    describe_exit,
    diagnose_container,
    diagnose_start,
    image_of,
    read_ending,
)
from windlass.kube.diagnosis.pod_scheduling import Diagnosis, diagnose, diagnose_create
from windlass.kube.objects.fields import (
    Object,
    condition_of,
    container_of,
    container_spec_of,
    created_s,
    deleted_s,
    event_first_s,
    event_last_s,
    events_of,
    group_events,
    name_of,
    read_time,
)

IndexOf = Callable[[Object], int | None]

_MOUNT = ("FailedMount", "FailedAttachVolume", "FailedMapVolume")
_MIN_CRASHES = 2
_MAX_NAMED = 3
_REFUSED = (  # reasons that Kubernetes, Kubeflow and KubeRay report
    *("FailedCreate", "FailedCreatePod"),
    *("FailedToCreateHeadPod", "FailedToCreateWorkerPod"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodMaker:
    """Object that creates the pods, with its kind and name as in events and its desired number of pods."""

    kind: str
    name: str
    created_s: float
    num_pods: int
    workers: str = ""  # name of an optional second object that creates pods


def find_pod_blockers(
    maker: PodMaker,
    pods: Sequence[Object],
    events: Sequence[Object],
    quotas: Sequence[Object],
    *,
    index_of: IndexOf,
    claims: Sequence[Object],
    nodes: Sequence[Object],
    last_lines: Mapping[str, str],
) -> list[Blocker]:
    """Return the blockers of a job's pods, most important first. The main object must not be held."""
    blockers = [
        *_find_uncreated(maker, pods, events, quotas),
        *_find_uncreated_workers(maker, pods, events, quotas),
        *_find_in_pods(_by_index(pods, index_of), events, nodes, claims),
        *_find_crashes(_by_index(pods, index_of), last_lines),
    ]
    return sorted(_merge(blockers), key=lambda blocker: (blocker.rank, blocker.since_s))


def _make(diagnosis: Diagnosis, *, pod: str = "", since_s: float = 0.0) -> Blocker:
    return Blocker(
        reason=diagnosis.reason,
        message=diagnosis.message,
        hint=diagnosis.hint,
        pod=pod,
        since_s=since_s,
    )


def _merge(blockers: Sequence[Blocker]) -> Iterator[Blocker]:
    """Merge blockers with the same reason and message into one that states the number of pods."""
    groups: dict[tuple[str, str], list[Blocker]] = {}
    for blocker in blockers:
        groups.setdefault((blocker.reason, blocker.message), []).append(blocker)
    for (reason, message), same in groups.items():
        first = min(same, key=lambda blocker: (blocker.since_s, blocker.pod))
        pods = _name_pods([blocker.pod for blocker in same if blocker.pod])
        yield Blocker(
            reason=reason,
            message=f"{pods}{message}",
            hint=first.hint,
            pod=first.pod,
            since_s=first.since_s,
        )


def _name_pods(pods: Sequence[str]) -> str:
    if len(pods) <= 1:
        return f"pod {pods[0]}: " if pods else ""
    more = f" and {len(pods) - _MAX_NAMED} more" if len(pods) > _MAX_NAMED else ""
    return f"pods {', '.join(sorted(pods)[:_MAX_NAMED])}{more}: "


def _find_uncreated(
    maker: PodMaker, pods: Sequence[Object], events: Sequence[Object], quotas: Sequence[Object]
) -> Iterator[Blocker]:
    """Find pods that the maker could not create.

    The events count only while pods are missing, because they may be outdated.
    """
    wanted = maker.num_pods
    present = sum(pod.get("status", {}).get("phase") != "Failed" for pod in pods)
    failures = events_of(events, maker.kind, maker.name, *_REFUSED)
    if present >= wanted or not failures or event_last_s(failures[-1]) < maker.created_s:
        return
    diagnosis = diagnose_create(str(failures[-1].get("message", "")))
    missing = wanted - present
    message = f"{missing} of {wanted} pods cannot be created: {diagnosis.message}{_left(diagnosis, quotas)}"
    diagnosis = Diagnosis(reason=diagnosis.reason, message=message, hint=diagnosis.hint)
    yield _make(diagnosis, since_s=event_first_s(failures[0]))


def _find_uncreated_workers(
    maker: PodMaker, pods: Sequence[Object], events: Sequence[Object], quotas: Sequence[Object]
) -> Iterator[Blocker]:
    """Find pods that the second maker could not create.

    Only that maker knows how many pods it wants. A pod created after the event shows that it is outdated.
    """
    failures = events_of(events, maker.kind, maker.workers, *_REFUSED) if maker.workers else []
    newest_s = max((created_s(pod) for pod in pods), default=maker.created_s)
    if not failures or event_last_s(failures[-1]) < newest_s:
        return
    diagnosis = diagnose_create(str(failures[-1].get("message", "")))
    message = f"pods of workers cannot be created: {diagnosis.message}{_left(diagnosis, quotas)}"
    diagnosis = Diagnosis(reason=diagnosis.reason, message=message, hint=diagnosis.hint)
    yield _make(diagnosis, since_s=event_first_s(failures[0]))


def _left(diagnosis: Diagnosis, quotas: Sequence[Object]) -> str:
    """Name the other exhausted limits of a quota, because the event names only the first one."""
    if diagnosis.reason != reasons.QUOTA:
        return ""
    full = []
    for quota in quotas:
        hard, used = (
            quota.get("status", {}).get("hard", {}),
            quota.get("status", {}).get("used", {}),
        )
        full += [
            f"{name} {used[name]} of {limit}"
            for name, limit in hard.items()
            if name not in diagnosis.message and limit not in ("0", 0) and used.get(name) == limit
        ]
    return f"; also used up: {', '.join(full)}" if full else ""


def _by_index(pods: Sequence[Object], index_of: IndexOf) -> list[list[Object]]:
    """Group pods by node index, oldest first. Each pod without a known index forms its own group."""
    by_index: dict[int | str, list[Object]] = {}
    for pod in sorted(pods, key=created_s):
        index = index_of(pod)
        by_index.setdefault(name_of(pod) if index is None else index, []).append(pod)
    return list(by_index.values())


def _diagnose_once(
    known: dict[tuple[str, str], Diagnosis], pod: Object, sentence: str, nodes: Sequence[Object]
) -> Diagnosis:
    """Diagnose a pod. Reuse the diagnosis of an identical pod, because a job may have thousands."""
    spec = pod.get("spec", {})
    like = (sentence, repr((container_spec_of(pod).get("resources"), spec.get("nodeSelector"))))
    if like not in known:
        known[like] = diagnose(pod, sentence, nodes=nodes)
    return known[like]


def _find_in_pods(
    by_index: Sequence[Sequence[Object]],
    events: Sequence[Object],
    nodes: Sequence[Object],
    claims: Sequence[Object],
) -> Iterator[Blocker]:
    by_name = group_events(events, "Pod")
    known: dict[tuple[str, str], Diagnosis] = {}
    for *before, pod in by_index:
        name, since_s = name_of(pod), created_s(pod)
        phase = pod.get("status", {}).get("phase")
        scheduled = condition_of(pod, "PodScheduled")
        if (lost := _read_lost(pod)) is not None:
            yield lost
        elif scheduled.get("reason") == "Unschedulable":
            diagnosis = _diagnose_once(known, pod, str(scheduled.get("message", "")), nodes)
            diagnosis = _name_claim(diagnosis, pod, claims)
            yield _make(
                diagnosis, pod=name, since_s=read_time(scheduled["lastTransitionTime"]) or since_s
            )
        elif scheduled.get("reason") == "SchedulingGated":
            message = "the scheduler may not place it yet: it has a scheduling gate"
            hint = (
                "a queue like Kueue removes the gate; `kubectl describe pod` shows which one it is"
            )
            diagnosis = Diagnosis(reason=reasons.GATED, message=message, hint=hint)
            yield _make(diagnosis, pod=name, since_s=since_s)
        elif (problem := diagnose_container(pod)) is not None:
            yield _make(problem, pod=name, since_s=since_s)
        elif from_events := list(
            _read_events(pod, by_name.get(name, ())) if phase == "Pending" else ()
        ):
            yield from from_events
        elif phase in ("Pending", "Failed"):
            # A new pod will fail like its predecessor.
            yield from _read_start_errors([pod, *before[-1:]])


def _read_start_errors(pods: Sequence[Object]) -> Iterator[Blocker]:
    """Yield the blocker of the first pod that could not be started."""
    for pod in pods:
        terminated = container_of(pod).get("state", {}).get("terminated") or {}
        text = " ".join(str(terminated.get("message") or "").split())
        if diagnosis := diagnose_start(image_of(pod), text):
            yield _make(diagnosis, pod=name_of(pod), since_s=created_s(pod))
            return


def _read_lost(pod: Object) -> Blocker | None:
    """Return the blocker of a pod on a node that does not answer.

    The pod is replaced only after it was evicted.
    """
    ending = read_ending(pod)
    is_gone = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    if ending is None or is_gone or ending.reason != reasons.NODE_LOST:
        return None
    return Blocker(
        reason=reasons.NODE_LOST,
        message=ending.message,
        hint="Kubernetes replaces the pod; if it does not, run `kubectl delete pod "
        f"{name_of(pod)} --grace-period=0 --force`",
        pod=name_of(pod),
        since_s=ending.at_s or deleted_s(pod) or 0.0,
    )


def _name_claim(diagnosis: Diagnosis, pod: Object, claims: Sequence[Object]) -> Diagnosis:
    """Name the unbound claim in the diagnosis, because the scheduler does not report its name."""
    if diagnosis.reason != reasons.VOLUME or '"' in diagnosis.message:
        return diagnosis
    volumes = pod.get("spec", {}).get("volumes") or ()
    used = {(v.get("persistentVolumeClaim") or {}).get("claimName") for v in volumes} - {None}
    pending = [c for c in claims if c.get("status", {}).get("phase") != "Bound"]
    names_of = [name_of(c) for c in pending if name_of(c) in used] or sorted(map(str, used))
    classes = {str(c.get("spec", {}).get("storageClassName", "the default")) for c in pending}
    of_class = f" (storage class {', '.join(sorted(classes))})" if classes else ""
    quoted = ", ".join(f'"{name}"' for name in names_of)
    message = (
        f"the volume claim {quoted}{of_class} is not bound: nothing has provided its volume yet"
    )
    hint = f"`kubectl describe pvc {' '.join(names_of)}` shows why. Often its storage class does not exist"
    return Diagnosis(reason=diagnosis.reason, message=message, hint=hint) if names_of else diagnosis


def _is_retried_by_node(event: Object) -> bool:
    """Return whether the node will retry because it has not yet received a Secret or ConfigMap."""
    return "cache: timed out waiting" in str(event.get("message", ""))


def _read_events(pod: Object, events: Sequence[Object]) -> Iterator[Blocker]:
    """Read what only events report of a scheduled pod: failed mounts and slow image pulls."""
    name = name_of(pod)
    pod_events = events_of(events, "Pod", name)
    failed = [
        event
        for event in pod_events
        if event.get("reason") in _MOUNT and not _is_retried_by_node(event)
    ]
    if failed and pod_events[-1] is failed[-1]:  # otherwise a retry succeeded
        text = " ".join(str(failed[-1].get("message", "")).split())
        diagnosis = Diagnosis(
            reason=reasons.MOUNT,
            message=f"a volume cannot be mounted: {text}",
            hint="correct --volume or --secret, or create the missing object",
        )
        yield _make(diagnosis, pod=name, since_s=event_first_s(failed[0]))
        return
    pulls = [event for event in pod_events if event.get("reason") in ("Pulling", "Pulled")]
    if pulls and pulls[-1].get("reason") == "Pulling":
        image = str(pod["spec"]["containers"][0].get("image", ""))
        diagnosis = Diagnosis(
            reason=reasons.PULLING,
            message=f"the node is pulling the image {image}",
            hint="a big image takes minutes the first time on a node",
        )
        yield _make(diagnosis, pod=name, since_s=event_first_s(pulls[-1]))


def _find_crashes(
    by_index: Sequence[Sequence[Object]], last_lines: Mapping[str, str]
) -> Iterator[Blocker]:
    """Find nodes with at least two failed pods. A single failure may be transient."""
    for pods in by_index:
        dead = [pod for pod in pods if _ended_by_error(pod)]
        if len(dead) < _MIN_CRASHES or read_ending(dead[-1]) is None:
            continue
        last = dead[-1]
        words = describe_exit(container_of(last)["state"]["terminated"])
        line = last_lines.get(name_of(last), "").strip()
        diagnosis = Diagnosis(
            reason=reasons.CRASH_LOOP,
            message=f"its pod ended {len(dead)} times: {words}{f', {line}' if line else ''}",
            hint="run `windlass logs JOB` to see its last lines",
        )
        yield _make(diagnosis, pod=name_of(last), since_s=created_s(dead[0]))


def _ended_by_error(pod: Object) -> bool:
    terminated = container_of(pod).get("state", {}).get("terminated") or {}
    return bool(terminated.get("reason") == "Error")

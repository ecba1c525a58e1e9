"""Blockers of a job's object that has no pods: Kueue has not admitted it, or its operator is idle.

These functions are pure. They take the JSON of the object and of events, and the names of the
namespace's queues, and return one blocker. Kueue's reasons are parsed from its messages, which differ
between versions. Unknown messages are passed on unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from windlass import names
from windlass.kube.diagnosis.blocker import (
    NOT_ADMITTED,
    OPERATOR_IDLE,
    QUEUE_MISSING,
    QUEUE_TOO_SMALL,
    SUSPENDED,
    Blocker,
    flag_for,
    make_half_submitted,
)
from windlass.kube.objects.fields import (
    Object,
    annotations_of,
    condition_of,
    created_s,
    event_last_s,
    labels_of,
    name_of,
    read_time,
)

_MAX_NAMED = 8
# `insufficient quota for cpu in flavor a, previously considered podsets requests (0) + current podset
# request (8) > maximum capacity (1)`. Before Kueue 0.11: `..., request > maximum capacity (8 > 1)`
_OVER = re.compile(
    r"insufficient quota for (?P<resource>\S+) in flavor (?P<flavor>[^\s,]+), "
    r"(?:.*?request \((?P<wanted>[^)]+)\) > maximum capacity \((?P<most>[^)]+)\)"
    r"|request > maximum capacity \((?P<wanted_then>\S+) > (?P<most_then>[^)]+)\))"
)
_BUSY = re.compile(r"insufficient unused quota for \S+ in flavor ([^\s,]+)")
_UNSERVED = re.compile(r"resource (\S+) unavailable in ClusterQueue")
IDLE_S = 15.0  # operators need some time to create pods


def read_suspension(
    job: Object,
    events: Sequence[Object],
    queues: Sequence[str] | None,
    *,
    prefix: str,
) -> Blocker:
    """Return the blocker of a suspended object of any kind that Kueue supports.

    The arguments are those of `read_waiting`, without `since_s`.
    """
    since_s = read_time(condition_of(job, "Suspended").get("lastTransitionTime")) or created_s(job)
    if names.LABEL_QUEUE in labels_of(job):
        return read_waiting(job, events, queues, since_s=since_s, prefix=prefix)
    is_ours = names.LABEL_JOB in labels_of(job)
    is_half_submitted = is_ours and names.ANNOTATION_SUBMIT in annotations_of(job)
    if not is_half_submitted:
        why = "it was suspended after its submit" if is_ours else "its owner has not started it"
        kind = str(job.get("kind", "Job")).lower()  # items of a list of Jobs have no kind
        return Blocker(
            reason=SUSPENDED,
            message=f"it is suspended: {why}",
            hint=f"run `kubectl edit {kind} {name_of(job)}` and set suspend to false",
            since_s=since_s,
        )
    return make_half_submitted(since_s)


def read_waiting(
    job: Object,
    events: Sequence[Object],
    queues: Sequence[str] | None,
    *,
    since_s: float,
    prefix: str,
) -> Blocker:
    """Return why an object waits in its queue.

    `queues` are those of the namespace, or None if the user may not read them. Kueue names the Workload of
    an object `prefix` plus the object's name.
    """
    queue = labels_of(job)[names.LABEL_QUEUE]
    if queues is not None and queue not in queues:
        return _make_missing_queue(queue, sorted(queues), since_s)
    why = _read_last_message(f"{prefix}{name_of(job)}-", events)
    if never := _why_never(why):
        resource, sentence = never
        flag = flag_for(resource)
        return Blocker(
            reason=QUEUE_TOO_SMALL,
            message=f'it will never start in the queue "{queue}": {sentence}',
            hint=f"request less with {flag} or --nodes, use another --queue, or ask for more quota",
            since_s=since_s,
        )
    return Blocker(
        reason=NOT_ADMITTED,
        message=f'it waits in the queue "{queue}"{f": {why}" if why else ""}',
        hint="it starts when Kueue admits it; `kubectl describe localqueue "
        f"{queue}` shows what is ahead",
        since_s=since_s,
    )


def _make_missing_queue(queue: str, queues: Sequence[str], since_s: float) -> Blocker:
    more = f" and {len(queues) - _MAX_NAMED} more" if len(queues) > _MAX_NAMED else ""
    there = f"available: {', '.join(queues[:_MAX_NAMED])}{more}" if queues else "it has no queues"
    hint = "use another --queue, or ask an admin to create this LocalQueue"
    return Blocker(
        reason=QUEUE_MISSING,
        message=f'queue "{queue}" not found in the job\'s namespace; {there}',
        hint=hint if queues else "omit --queue, or ask an admin whether Kueue is installed",
        since_s=since_s,
    )


def _why_never(why: str) -> tuple[str, str] | None:
    """Return the resource whose total quota is too small for the object, and a sentence about it.

    Return None if the object may start later.
    """
    if unserved := _UNSERVED.search(why):
        return unserved[1], f"the queue has no quota for {unserved[1]}"
    over = list(_OVER.finditer(why))
    # A busy flavor will have free quota later.
    if not over or set(_BUSY.findall(why)) - {match["flavor"] for match in over}:
        return None
    resource = over[0]["resource"]
    wanted = over[0]["wanted"] or over[0]["wanted_then"]
    most = over[0]["most"] or over[0]["most_then"]
    return (
        resource,
        f"it requests {wanted} {resource} in total, but the queue's total quota is {most}",
    )


def _read_last_message(prefix: str, events: Sequence[Object]) -> str:
    """Return the newest message of Kueue about an object, from the events of its Workload.

    Events need no additional right, unlike the Workload itself.
    """
    messages = [
        event
        for event in events
        if event.get("involvedObject", {}).get("kind") == "Workload"
        and str(event["involvedObject"].get("name", "")).startswith(prefix)
        and event.get("reason") in ("Pending", "Preempted", "Evicted")
    ]
    last = max(messages, key=event_last_s, default={})
    return " ".join(str(last.get("message", "")).split())


def find_idle_operator(
    body: Object,
    kind: str,
    operator: str,
    events: Sequence[Object],
    *,
    num_pods: tuple[int, int],
    since_s: float,
) -> Blocker:
    """Return the blocker of an object that is allowed to run but lacks pods.

    Its message contains the operator's last warning, or asks whether the operator is running. `num_pods` is
    the existing and the wanted number of pods. `since_s` is the time of the last event about a pod.
    """
    num_here, num_wanted = num_pods
    missing = f"{num_wanted - num_here} of {num_wanted} pods" if num_here else "the pods"
    resumed_s = read_time(condition_of(body, "Suspended").get("lastTransitionTime")) or 0.0
    # The objects between it and the pods have the same name.
    about = [one for one in events if one.get("involvedObject", {}).get("name") == name_of(body)]
    warnings = sorted((one for one in about if one.get("type") == "Warning"), key=event_last_s)
    warning = " ".join(str(warnings[-1].get("message", "")).split()) if warnings else ""
    object_name = f"{kind} {name_of(body)}"
    return Blocker(
        reason=OPERATOR_IDLE,
        message=f"{operator} has not made {missing} of {object_name}"
        f"{f', and says: {warning}' if warning else ': is its controller running?'}",
        hint=f"`kubectl describe {kind.lower()} {name_of(body)}` shows its events; "
        "ask a cluster administrator to check it, or use --engine kubernetes",
        since_s=max(created_s(body), resumed_s, since_s),
    )

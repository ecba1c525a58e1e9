"""An operator that does not do its part: what it says of an object, or that it says nothing. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from windlass.kube.blocker import OPERATOR_IDLE, Blocker
from windlass.kube.fields import Object, condition_of, created_s, event_last_s, name_of, read_time

IDLE_S = 15.0  # it takes a moment to make pods


def find_idle_operator(
    body: Object,
    kind: str,
    operator: str,
    events: Sequence[Object],
    *,
    num_pods: tuple[int, int],
    since_s: float,
) -> Blocker:
    """That an object may run and lacks pods: its operator's own last warning, or that it may be down.

    `num_pods` are those that are there, and all; `since_s` is when one was heard of last.
    """
    num_here, num_wanted = num_pods
    missing = f"{num_wanted - num_here} of {num_wanted} pods" if num_here else "the pods"
    resumed_s = read_time(condition_of(body, "Suspended").get("lastTransitionTime")) or 0.0
    # what it makes on the way to pods bears the object's name
    about = [one for one in events if one.get("involvedObject", {}).get("name") == name_of(body)]
    warnings = sorted((one for one in about if one.get("type") == "Warning"), key=event_last_s)
    said = " ".join(str(warnings[-1].get("message", "")).split()) if warnings else ""
    object_name = f"{kind} {name_of(body)}"
    return Blocker(
        reason=OPERATOR_IDLE,
        message=f"{operator} has not made {missing} of {object_name}"
        f"{f', and says: {said}' if said else ': is its controller running?'}",
        hint=f"kubectl describe {kind.lower()} {name_of(body)} shows what it did; "
        "ask an admin of the cluster to look at it, or use --engine kubernetes",
        since_s=max(created_s(body), resumed_s, since_s),
    )

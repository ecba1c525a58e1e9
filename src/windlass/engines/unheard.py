"""What is not known of a job, for a client that asks: node 0 or an API server that does not answer. Pure."""

from __future__ import annotations

import time
from dataclasses import replace

from windlass.wire.status import Condition, JobStatus

UNSEEN = "the API server has not said yet where its pods are: this is what was known before"


def describe_silence(lead: str) -> str:
    return (
        f"node 0 (pod {lead}) runs but does not answer: its ranks, progress and lines are not known"
    )


def describe_forgotten(kind: str) -> str:
    return (
        f"its pod was made again: on a {kind} of one node nothing remembers what was before, so it began as "
        "attempt 0 once more, and --node-restarts does not count it; --timeout bounds it"
    )


def add_warning(
    status: JobStatus, reason: str, message: str, *, since_s: float | None = None
) -> JobStatus:
    """The status with one thing more that is so, since then or now."""
    at_s = time.time() if since_s is None else since_s
    condition = Condition(type="warning", reason=reason, message=message, since_s=at_s)
    return replace(status, conditions=(*status.conditions, condition))

"""What is not known of a job, for who looks at it: a node 0 or an API server that does not answer. Pure."""

from __future__ import annotations

import time
from dataclasses import replace

from windlass.wire.status import Condition, JobStatus

UNSEEN = "the API server has not said yet where its pods are: this is what was known before"


def describe_silence(lead: str) -> str:
    return (
        f"node 0 (pod {lead}) runs but does not answer: its ranks, progress and lines are not known"
    )


def add_warning(status: JobStatus, reason: str, message: str) -> JobStatus:
    """The status with one thing more that is so now."""
    condition = Condition(type="warning", reason=reason, message=message, since_s=time.time())
    return replace(status, conditions=(*status.conditions, condition))

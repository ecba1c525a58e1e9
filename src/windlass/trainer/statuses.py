"""A job's status in one word of the SDKs: six words in v1, four in v2. Pure."""

from __future__ import annotations

from windlass.kube.diagnosis.blocker import NOT_ADMITTED, QUEUE_MISSING, QUEUE_TOO_SMALL, SUSPENDED
from windlass.trainer.types import UNKNOWN
from windlass.wire.status import JobStatus, Phase

CREATED = "Created"
RUNNING = "Running"
RESTARTING = "Restarting"
HELD = "Suspended"
SUCCEEDED = "Succeeded"
FAILED = "Failed"
COMPLETE = "Complete"
V1_WORDS = frozenset({CREATED, RUNNING, RESTARTING, HELD, SUCCEEDED, FAILED})
V2_WORDS = frozenset({CREATED, RUNNING, COMPLETE, FAILED})
ENDED = frozenset({SUCCEEDED, COMPLETE, FAILED, UNKNOWN})

_ENDS = {
    Phase.SUCCEEDED: SUCCEEDED,
    Phase.FAILED: FAILED,
    Phase.CANCELLED: FAILED,
    Phase.ENDED: UNKNOWN,  # how is not known any more
}
_HOLDS = frozenset({NOT_ADMITTED, QUEUE_MISSING, QUEUE_TOO_SMALL, SUSPENDED})
_V2 = {RESTARTING: RUNNING, HELD: CREATED, SUCCEEDED: COMPLETE}


def name_v1(status: JobStatus) -> str:
    """Created, Running, Restarting, Suspended, Succeeded or Failed; Unknown where nobody knows the end."""
    if status.phase.is_final:
        return _ENDS[status.phase]
    if any(condition.reason in _HOLDS for condition in status.conditions):
        return HELD
    if status.phase in (Phase.RUNNING, Phase.STOPPING):
        return RUNNING
    return RESTARTING if status.history else CREATED


def name_v2(status: JobStatus) -> str:
    """Created, Running, Complete or Failed."""
    word = name_v1(status)
    return _V2.get(word, word)

"""Blocker: one thing that keeps a job from getting on. The record, its reasons, and their rank.

`pod_blockers`, `pod_scheduling` and `job_admission` find blockers. Programs match on the reasons.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.wire.status import Condition

CONDITION = "blocker"
WHEN_OTHERS_END = "it starts when others end"

QUOTA = "QuotaExceeded"
POD_SECURITY = "PodSecurity"
SERVICE_ACCOUNT = "ServiceAccountMissing"
DENIED = "Denied"
CREATE_FAILED = "FailedCreate"
IMAGE_NAME = "InvalidImageName"
IMAGE_PULL = "ImagePull"
CONTAINER_CONFIG = "CreateContainerConfigError"
START_ERROR = "StartError"  # the image lacks the program: no other node will find it
RUNTIME_REFUSED = "RuntimeRefused"
CRASH_LOOP = "CrashLoop"
VOLUME = "VolumeMissing"
UNSCHEDULABLE = "Unschedulable"
MOUNT = "FailedMount"
NODE_LOST = "NodeLost"
OPERATOR_IDLE = "OperatorIdle"
QUEUE_MISSING = "QueueMissing"
QUEUE_TOO_SMALL = "QueueTooSmall"
NOT_ADMITTED = "NotAdmitted"
HALF_SUBMITTED = "HalfSubmitted"
SUSPENDED = "Suspended"  # by whoever made it
GATED = "SchedulingGated"
PULLING = "PullingImage"

# What no waiting will cure comes first, what is only slow comes last.
_RANKS = {
    reason: rank
    for rank, reason in enumerate(
        (
            *(QUEUE_MISSING, QUEUE_TOO_SMALL),
            *(IMAGE_NAME, SERVICE_ACCOUNT, POD_SECURITY, DENIED, START_ERROR, IMAGE_PULL),
            *(
                CONTAINER_CONFIG,
                RUNTIME_REFUSED,
                VOLUME,
                MOUNT,
                CRASH_LOOP,
                CREATE_FAILED,
                QUOTA,
                UNSCHEDULABLE,
            ),
            *(OPERATOR_IDLE, NODE_LOST, NOT_ADMITTED, HALF_SUBMITTED, GATED, PULLING),
        )
    )
}

_FLAGS = {"cpu": "--cpus", "memory": "--memory", "ephemeral-storage": "--ephemeral-storage"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocker:
    """What is in the way, in one sentence; what to do about it; which pod shows it; since when."""

    reason: str
    message: str
    hint: str = ""
    pod: str = ""
    since_s: float = 0.0

    @property
    def rank(self) -> int:
        """Smaller is more important."""
        return _RANKS.get(self.reason, len(_RANKS))

    @property
    def is_hopeless(self) -> bool:
        """Whether no waiting will cure it: somebody has to change something."""
        return self.rank <= _RANKS[START_ERROR] or self.reason == CONTAINER_CONFIG


def flag_for(resource: str) -> str:
    """Return the flag that asks for a resource of pods."""
    return _FLAGS.get(resource, "--gpus")


def make_half_submitted(since_s: float) -> Blocker:
    """Return what blocks a job whose client went away before the submit was complete."""
    return Blocker(
        reason=HALF_SUBMITTED,
        message="the job was made but never started: its submit did not finish",
        hint="windlass rm JOB removes it; then submit it again",
        since_s=since_s,
    )


def needs_room(condition: Condition) -> bool:
    """Whether it would help that somebody else ends: nodes, the quota or the queue are full."""
    if condition.type != CONDITION:
        return False
    return condition.reason in (QUOTA, NOT_ADMITTED) or WHEN_OTHERS_END in condition.text


def make_condition(blocker: Blocker) -> Condition:
    """The blocker as it stands in a job's status."""
    return Condition(
        type=CONDITION,
        reason=blocker.reason,
        message=blocker.message,
        hint=blocker.hint,
        since_s=blocker.since_s,
    )

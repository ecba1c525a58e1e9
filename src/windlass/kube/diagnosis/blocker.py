"""Blockers: the reasons that keep a job from running, and their order of importance.

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
START_ERROR = "StartError"  # the image lacks the program, so all other nodes fail too
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
SUSPENDED = "Suspended"  # the owner suspended the job
GATED = "SchedulingGated"
PULLING = "PullingImage"

# Blockers that waiting cannot resolve come first, and merely slow ones last.
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
    """One reason why a job does not run: a sentence, a hint, the affected pod, and the start time."""

    reason: str
    message: str
    hint: str = ""
    pod: str = ""
    since_s: float = 0.0

    @property
    def rank(self) -> int:
        """Rank of the reason. A lower rank is more important."""
        return _RANKS.get(self.reason, len(_RANKS))

    @property
    def is_hopeless(self) -> bool:
        """True if waiting does not help and the user has to change something."""
        return self.rank <= _RANKS[START_ERROR] or self.reason == CONTAINER_CONFIG


def flag_for(resource: str) -> str:
    """Return the command-line flag that sets a pod's request for this resource."""
    return _FLAGS.get(resource, "--gpus")


def make_half_submitted(since_s: float) -> Blocker:
    """Return the blocker of a job whose submit was interrupted."""
    return Blocker(
        reason=HALF_SUBMITTED,
        message="the job was created but never started: its submit did not finish",
        hint="remove it with `windlass rm JOB`, then submit the job again",
        since_s=since_s,
    )


def needs_room(condition: Condition) -> bool:
    """Return whether the job waits for other jobs to end, because nodes, quota or queue are full."""
    if condition.type != CONDITION:
        return False
    return condition.reason in (QUOTA, NOT_ADMITTED) or WHEN_OTHERS_END in condition.text


def make_condition(blocker: Blocker) -> Condition:
    """Return the blocker as a condition of a job's status."""
    return Condition(
        type=CONDITION,
        reason=blocker.reason,
        message=blocker.message,
        hint=blocker.hint,
        since_s=blocker.since_s,
    )

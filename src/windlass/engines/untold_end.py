"""How a job ended whose lead did not say it: what the cluster shows, and no more than that.

Pure: a status in, a final one out. Where agents left in peace and their pods are gone, the job has ended and
its outcome is not known: it neither failed nor never started.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from windlass import names
from windlass.agent.lead.failure import make_job_verdict
from windlass.plan.plan import Plan
from windlass.wire.status import Condition, FailureKind, JobStatus, Phase

_PHASES: Mapping[FailureKind, Phase] = {
    FailureKind.CANCELLED: Phase.CANCELLED,
    FailureKind.UNKNOWN: Phase.ENDED,
}
_KEEP = (
    "to keep an outcome, stay attached (windlass run), look at a detached job before its pods go "
    "(windlass status), or have the code write to a volume (--volume)"
)


def end_job(
    plan: Plan,
    status: JobStatus,
    kind: FailureKind,
    message: str,
    *,
    at_s: float,
    node: int | None = None,
) -> JobStatus:
    """The last status of a job that ended like this."""
    phase = _PHASES.get(kind, Phase.FAILED)
    verdict = make_job_verdict(plan, kind, message, at_s=at_s, attempt=status.attempt, node=node)
    if kind is FailureKind.UNKNOWN:
        verdict = replace(verdict, next=_KEEP)
    condition = Condition(type=phase.value, reason=verdict.reason, message=message, since_s=at_s)
    return replace(
        status,
        phase=phase,
        verdict=verdict,
        ended_at_s=at_s,
        ranks=status.lose_ranks(),
        conditions=(*status.conditions, condition),
    )


def show_ending(status: JobStatus, *, at_s: float) -> JobStatus:
    """A job that has ended, while what it left is still on its way: it waits for nothing else."""
    if status.phase.is_final or status.phase is Phase.STOPPING:
        return status
    condition = Condition(
        type=Phase.STOPPING.value,
        reason=names.REASON_OUTCOME_UNKNOWN,
        message="it has ended; what it left is being read",
        since_s=at_s,
    )
    return replace(status, phase=Phase.STOPPING, conditions=(*status.conditions, condition))

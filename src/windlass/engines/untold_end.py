"""How a job ended whose lead did not say it: what the cluster shows, and no more than that.

A status in, a final one out; nothing is changed in the cluster. Where agents left in peace and their pods
are gone, the job has ended and its outcome is not known: it neither failed nor never started.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

from windlass import names
from windlass.agent.lead.failure import make_job_verdict
from windlass.engines.job_watch import JobWatch
from windlass.kube.diagnosis.blocker import CONDITION, Blocker
from windlass.kube.diagnosis.pod_endings import PodIndexes, read_dead_pods
from windlass.kube.objects.fields import name_of
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


class UntoldEnd:
    """The judge of one job: what it sees of it is what the watch does."""

    def __init__(self, plan: Plan, kind: str, watch: JobWatch, indexes: PodIndexes) -> None:
        self._plan = plan
        self._kind = kind
        self._watch = watch
        self._indexes = indexes

    def judge_ended(self, status: JobStatus) -> JobStatus:
        """The main object is over, and its last word is not to be had: what its pods show."""
        at_s = self._watch.ended_at_s
        if self._watch.has_completed:
            return self._end(status, FailureKind.UNKNOWN, self._describe_lost_outcome(), at_s=at_s)
        events = self._watch.read_events()
        dead = read_dead_pods(self._watch.all_pods, events, indexes=self._indexes)
        message = (dead[-1].ending.message if dead else "") or "its pods failed and are gone"
        if not dead:
            told = self._watch.describe_failure()
            message = f"{message} ({told})" if told else message
            return self._end(status, FailureKind.LOST_NODE, message, at_s=at_s)
        last = dead[-1]
        if said := self._watch.read_last_line(last.name):
            message = f"{message}: {said}"
        return self._end(status, last.ending.kind, message, node=last.index, at_s=at_s)

    def judge_deleted(self, status: JobStatus, cancelled_why: str) -> JobStatus:
        """The main object is gone; `cancelled_why` is empty where nobody here asked for that."""
        if not cancelled_why and self._watch.has_completed:
            return self._end(status, FailureKind.UNKNOWN, self._describe_lost_outcome())
        message = cancelled_why or f"its {self._kind} was deleted from the cluster"
        return self._end(status, FailureKind.CANCELLED, message)

    def judge_late(self, status: JobStatus, limit_s: float) -> JobStatus:
        """Its lead was not there in time."""
        blocked = next((c for c in status.conditions if c.type == CONDITION), None)
        message = f"it had no nodes after {limit_s:g} s (--join-timeout)"
        if blocked is not None:
            message = f"{message}: {blocked.message}"
        ended = self._end(status, FailureKind.START_FAILED, message)
        return _advise(ended, blocked.hint if blocked else "")

    def judge_unstartable(self, status: JobStatus, blocker: Blocker) -> JobStatus:
        """Its image lacks the interpreter, so every pod will: no use in trying until its budget is spent."""
        return _advise(self._end(status, FailureKind.START_FAILED, blocker.message), blocker.hint)

    def _describe_lost_outcome(self) -> str:
        leads = self._watch.list_leads()
        if leads:
            return f"how it ended stands in the log of pod {name_of(leads[-1])}, which cannot be read now"
        return "it ran to its end, but how it ended is gone with its pods"

    def _end(
        self,
        status: JobStatus,
        kind: FailureKind,
        message: str,
        *,
        node: int | None = None,
        at_s: float | None = None,
    ) -> JobStatus:
        """The last status of a job that ended like this."""
        at_s = at_s or time.time()
        phase = _PHASES.get(kind, Phase.FAILED)
        verdict = make_job_verdict(
            self._plan, kind, message, at_s=at_s, attempt=status.attempt, node=node
        )
        if kind is FailureKind.UNKNOWN:
            verdict = replace(verdict, next=_KEEP)
        reason = verdict.reason
        condition = Condition(type=phase.value, reason=reason, message=message, since_s=at_s)
        return replace(
            status,
            phase=phase,
            verdict=verdict,
            ended_at_s=at_s,
            ranks=status.lose_ranks(),
            conditions=(*status.conditions, condition),
        )


def _advise(status: JobStatus, hint: str) -> JobStatus:
    """The last status of a job that was blocked: its verdict says what to do about that."""
    if status.verdict is None or not hint:
        return status
    return replace(status, verdict=replace(status.verdict, next=hint))


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

"""What keeps one job from getting on, asked of the API server no more often than is worth it.

What a blocker is, and in which words, is its dialect's and `kube.diagnosis.pod_blockers`.
"""

from __future__ import annotations

import time

from windlass.engines.dialects.dialect import Dialect
from windlass.engines.job_watch import JobWatch
from windlass.kube.diagnosis.blocker import (
    NOT_ADMITTED,
    OPERATOR_IDLE,
    START_ERROR,
    VOLUME,
    Blocker,
    make_condition,
)
from windlass.kube.diagnosis.job_admission import IDLE_S
from windlass.wire.status import Condition

PATIENCE_S = 1.0  # a job that is younger is not called blocked, and none is asked about more often
_BINDING_S = 10.0


class JobBlockers:
    """Of one job, as they were found last."""

    def __init__(self, dialect: Dialect, sight: JobWatch) -> None:
        self._dialect = dialect
        self._sight = sight
        self._looked_s = -PATIENCE_S
        self._conditions: tuple[Condition, ...] = ()
        self.unstartable: Blocker | None = None  # its image lacks the interpreter

    def look(self) -> tuple[Condition, ...]:
        """What blocks it, as conditions, most important first."""
        if self._sight.job is None:
            return ()
        if time.monotonic() - self._looked_s >= PATIENCE_S:
            self._looked_s = time.monotonic()
            blockers = [blocker for blocker in self._find() if not _is_young(blocker)]
            self.unstartable = next((one for one in blockers if one.reason == START_ERROR), None)
            self._conditions = tuple(make_condition(blocker) for blocker in blockers)
        return self._conditions

    def _find(self) -> list[Blocker]:
        job, pods, events = self._sight.job or {}, self._sight.pods, self._sight.read_events()
        blockers = self._dialect.find_blockers(job, pods, events)
        if not blockers:
            return []
        # now it is worth asking for what makes the sentences more exact
        quotas, claims, nodes = self._sight.read_around()
        is_queued = blockers[0].reason == NOT_ADMITTED
        return self._dialect.find_blockers(
            job,
            pods,
            events,
            quotas,
            claims=claims,
            nodes=nodes,
            queues=self._sight.read_queues() if is_queued else None,
            last_lines=self._sight.read_last_lines(),
        )


def _is_young(blocker: Blocker) -> bool:
    """A claim that was just made is bound in a moment, if it can be; pods are made in a moment."""
    is_unbound = blocker.reason == VOLUME and "is not bound" in blocker.message
    patience_s = _BINDING_S if is_unbound else IDLE_S if blocker.reason == OPERATOR_IDLE else 0.0
    return time.time() - blocker.since_s < patience_s

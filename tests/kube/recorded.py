"""Responses recorded from a real cluster for each kind of failure, as JSON trimmed to the used fields."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.diagnosis import pod_endings
from windlass.kube.diagnosis.blocker import Blocker

find_blockers = KUBERNETES.find_blockers
_JOB_NAME = "batch.kubernetes.io/job-name"
_FOLDER = Path(__file__).parent / "seen"


@dataclass
class Seen:
    """One job, its pods, and the namespace's events at that time."""

    job: dict[str, Any] = field(default_factory=dict)
    pods: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    quotas: list[dict[str, Any]] = field(default_factory=list)
    claims: list[dict[str, Any]] = field(default_factory=list)

    def blockers(self, **more: Any) -> list[Blocker]:
        return find_blockers(
            self.job, self.pods, self.events, self.quotas, claims=self.claims, **more
        )


def load(name: str) -> Seen:
    return Seen(**json.loads((_FOLDER / f"{name}.json").read_text()))


def read_dead_pods(pods: list[dict[str, Any]], events: Any = ()) -> tuple[pod_endings.DeadPod, ...]:
    """Return the pods of one Indexed Job that failed."""
    return pod_endings.read_dead_pods(pods, events, indexes=_find_indexes(pods))


def timeline(pods: list[dict[str, Any]], **more: Any) -> list[Any]:
    return pod_endings.timeline(pods, indexes=_find_indexes(pods), **more)


def _find_indexes(pods: list[dict[str, Any]]) -> pod_endings.PodIndexes:
    jobs = {pod["metadata"].get("labels", {}).get(_JOB_NAME, "") for pod in pods} or {""}
    (job,) = jobs
    return pod_endings.PodIndexes(
        of_pod=KUBERNETES.index_of, of_name=lambda name: KUBERNETES.index_in_name(name, job)
    )

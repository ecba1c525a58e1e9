"""Computes as their Jobs show them: which may live, and which never started and are waited for by nobody.

Those that wait for a compute say on its Job until when it keeps its place; once it is up, that is taken off.
No controller looks at it: whoever lists jobs next removes what is abandoned.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

from windlass import names
from windlass.kube.api import Api
from windlass.kube.fields import Object, condition_of, is_true, name_of
from windlass.kube.kinds import JOBS
from windlass.kube.refusals import ClusterError
from windlass.spec.work import Calls

logger = logging.getLogger(__name__)


def may_be_live_compute(job: Object) -> bool:
    """Whether it is called what computes are called, and has not ended."""
    work = _annotations(job).get(names.ANNOTATION_WORK)
    has_ended = any(is_true(condition_of(job, end)) for end in ("Complete", "Failed"))
    return work == Calls().label and not has_ended


def is_abandoned(job: Object, now_s: float) -> bool:
    """Whether its place is not kept any more, and no pod of it has ever run."""
    until = _annotations(job).get(names.ANNOTATION_KEEP_PLACE, "")
    if not until.isdecimal() or now_s < int(until) or not may_be_live_compute(job):
        return False
    counts = job.get("status", {})
    return not any(counts.get(kind) for kind in ("ready", "failed", "succeeded", "terminating"))


def remove_abandoned(api: Api, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove those that are abandoned, as they were seen; the others."""
    now_s = time.time()
    left = []
    for job in jobs:
        if is_abandoned(job, now_s) and _remove(api, job):
            name = name_of(job)
            logger.warning("%s never started, and nobody waited for it any more: removed", name)
        else:
            left.append(job)
    return left


def _remove(api: Api, job: Object) -> bool:
    about = job["metadata"]
    try:
        # as it was seen: somebody may have come to wait for it
        api.delete(JOBS, about["name"], uid=about["uid"], version=about.get("resourceVersion", ""))
    except ClusterError as error:
        logger.debug("%s is abandoned, but stays: %s", about["name"], error)
        return False
    return True


def _annotations(job: Object) -> dict[str, str]:
    return job["metadata"].get("annotations") or {}

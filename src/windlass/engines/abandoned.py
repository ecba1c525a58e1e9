"""Jobs that nobody will ever start: computes that are waited for by nobody, and submits that broke off.

Those that wait for a compute say on its Job until when it keeps its place; once it is up, that is taken off.
A submit marks its Job, and takes the mark off when it starts it. No controller looks at either: whoever lists
jobs or submits one next removes what is abandoned.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from windlass import names
from windlass.kube.api import Api
from windlass.kube.api_errors import ClusterError
from windlass.kube.fields import Object, condition_of, created_s, is_true, labels_of, name_of
from windlass.kube.kinds import JOBS
from windlass.spec.work import Calls

logger = logging.getLogger(__name__)

HALF_SUBMITTED_S = 3600.0  # a submit takes seconds


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


def is_half_submitted(job: Object, now_s: float) -> bool:
    """Whether its client went away before it was complete: it is suspended, and never starts.

    One that somebody suspended later has lost its submit's mark; Kueue starts its own.
    """
    is_marked = names.ANNOTATION_SUBMIT in _annotations(job)
    is_suspended = bool(job.get("spec", {}).get("suspend"))
    is_queued = names.LABEL_QUEUE in labels_of(job)
    is_old = now_s - created_s(job) > HALF_SUBMITTED_S
    return is_suspended and is_marked and is_old and not is_queued


def remove_abandoned(api: Api, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove those that are abandoned, as they were seen; the others."""
    now_s = time.time()
    left = []
    for job in jobs:
        why = (
            "never started, and nobody waited for it any more"
            if is_abandoned(job, now_s)
            else "was never started: its submit broke off"
            if is_half_submitted(job, now_s)
            else ""
        )
        if why and _remove(api, job):
            logger.warning("%s %s: removed", name_of(job), why)
        else:
            left.append(job)
    return left


def sweep(api: Api) -> None:
    """Remove what is abandoned, for who has no other reason to list jobs."""
    with contextlib.suppress(ClusterError):
        remove_abandoned(api, api.list(JOBS, labels=names.LABEL_JOB))


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

"""Computes as their Jobs show them: which may live.

Pure: the JSON of a Job in. What a compute is, its plan says.
"""

from __future__ import annotations

from windlass import names
from windlass.kube.fields import Object, condition_of, is_true
from windlass.spec.work import Calls


def may_be_live_compute(job: Object) -> bool:
    """Whether it is called what computes are called, and has not ended."""
    work = job["metadata"].get("annotations", {}).get(names.ANNOTATION_WORK)
    has_ended = any(is_true(condition_of(job, end)) for end in ("Complete", "Failed"))
    return work == Calls().label and not has_ended

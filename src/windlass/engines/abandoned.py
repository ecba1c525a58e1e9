"""Jobs that nobody will ever start: computes that are waited for by nobody, and submits that broke off.

Those that wait for a compute say on its object until when it keeps its place; once it is up, that is taken
off. A submit marks its object, and takes the mark off when it starts it. No controller looks at either:
whoever lists jobs or submits one next removes what is abandoned.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect, ObjectPhase
from windlass.kube.api import Api
from windlass.kube.api_errors import ClusterError
from windlass.kube.fields import Object, created_s, labels_of, name_of
from windlass.spec.work import Calls

logger = logging.getLogger(__name__)

HALF_SUBMITTED_S = 3600.0  # a submit takes seconds


def may_be_live_compute(dialect: Dialect, body: Object) -> bool:
    """Whether it is called what computes are called, and has not ended."""
    work = _annotations(body).get(names.ANNOTATION_WORK)
    return work == Calls().label and dialect.read_end(body) is None


def is_abandoned(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Whether its place is not kept any more, and no pod of it has ever run."""
    until = _annotations(body).get(names.ANNOTATION_KEEP_PLACE, "")
    if not until.isdecimal() or now_s < int(until) or not may_be_live_compute(dialect, body):
        return False
    return dialect.read_phase(body) in (ObjectPhase.HELD, ObjectPhase.WAITING)


def is_half_submitted(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Whether its client went away before it was complete: it never starts.

    One that somebody suspended later has lost its submit's mark; Kueue starts its own.
    """
    is_marked = names.ANNOTATION_SUBMIT in _annotations(body)
    never_starts = ObjectPhase.HELD if dialect.start else ObjectPhase.WAITING
    is_queued = names.LABEL_QUEUE in labels_of(body)
    is_old = now_s - created_s(body) > HALF_SUBMITTED_S
    return is_marked and is_old and not is_queued and dialect.read_phase(body) is never_starts


def remove_abandoned(
    api: Api, dialect: Dialect, bodies: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Remove those that are abandoned, as they were seen; the others."""
    now_s = time.time()
    left = []
    for body in bodies:
        why = (
            "never started, and nobody waited for it any more"
            if is_abandoned(dialect, body, now_s)
            else "was never started: its submit broke off"
            if is_half_submitted(dialect, body, now_s)
            else ""
        )
        if why and _remove(api, dialect, body):
            logger.warning("%s %s: removed", name_of(body), why)
        else:
            left.append(body)
    return left


def sweep(api: Api, dialect: Dialect) -> None:
    """Remove what is abandoned, for who has no other reason to list jobs."""
    with contextlib.suppress(ClusterError):
        remove_abandoned(api, dialect, api.list(dialect.kind, labels=names.LABEL_JOB))


def _remove(api: Api, dialect: Dialect, body: Object) -> bool:
    about = body["metadata"]
    version = about.get("resourceVersion", "")
    try:
        # as it was seen: somebody may have come to wait for it
        api.delete(dialect.kind, about["name"], uid=about["uid"], version=version)
    except ClusterError as error:
        logger.debug("%s is abandoned, but stays: %s", about["name"], error)
        return False
    return True


def _annotations(body: Object) -> dict[str, str]:
    return body["metadata"].get("annotations") or {}

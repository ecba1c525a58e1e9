"""Jobs that nobody needs: computes that are waited for by nobody, submits that broke off, and old ends.

Those that wait for a compute say on its object until when it keeps its place; once it is up, that is taken
off. A submit marks its object, and takes the mark off when it starts it. Where a kind has no time to live of
its own, an annotation has it. No controller looks at any of these: whoever lists jobs or submits one next
removes what is abandoned.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Sequence
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Dialect, ObjectPhase
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError
from windlass.kube.diagnosis.blocker import make_condition, make_half_submitted
from windlass.kube.objects.fields import Object, annotations_of, created_s, labels_of, name_of
from windlass.kube.objects.kinds import ObjectKind
from windlass.kube.objects.naming import read_job_id
from windlass.spec.work import Calls
from windlass.wire.status import JobStatus

logger = logging.getLogger(__name__)

HALF_SUBMITTED_S = 3600.0  # a submit takes seconds


def list_main(api: Api, dialect: Dialect) -> list[dict[str, Any]]:
    """The main objects of all jobs: one that has a compute's workers goes with its main object."""
    bodies = api.list(dialect.kind, labels=names.LABEL_JOB)
    return [body for body in bodies if names.LABEL_FIRST_INDEX not in labels_of(body)]


def may_be_live_compute(dialect: Dialect, body: Object) -> bool:
    """Whether it is called what computes are called, and has not ended."""
    work = annotations_of(body).get(names.ANNOTATION_WORK)
    return work == Calls().label and dialect.read_end(body) is None


def is_abandoned(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Whether its place is not kept any more, and no pod of it has ever run."""
    until = annotations_of(body).get(names.ANNOTATION_KEEP_PLACE, "")
    if not until.isdecimal() or now_s < int(until) or not may_be_live_compute(dialect, body):
        return False
    return dialect.read_phase(body) in (ObjectPhase.HELD, ObjectPhase.WAITING)


def is_half_submitted(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Whether its client went away before it was complete: it never starts.

    One that somebody suspended later has lost its submit's mark; Kueue starts its own.
    """
    is_marked = names.ANNOTATION_SUBMIT in annotations_of(body)
    never_starts = ObjectPhase.HELD if dialect.start else ObjectPhase.WAITING
    is_queued = names.LABEL_QUEUE in labels_of(body)
    is_old = now_s - created_s(body) > HALF_SUBMITTED_S
    return is_marked and is_old and not is_queued and dialect.read_phase(body) is never_starts


def make_half_status(dialect: Dialect, body: Object) -> JobStatus:
    """Return the status of a job of which only the main object was made: there is no plan to read."""
    hold = make_half_submitted(created_s(body))
    job_id = read_job_id(body)
    return JobStatus(
        job_id=job_id,
        name=labels_of(body).get(names.LABEL_NAME, job_id),
        engine=dialect.name,
        work=annotations_of(body).get(names.ANNOTATION_WORK, ""),
        num_nodes=dialect.num_pods(body),
        num_ranks=0,
        created_at_s=created_s(body),
        conditions=(make_condition(hold),),
    )


def is_expired(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Whether it ended longer ago than it is kept, where nothing in the cluster removes its kind."""
    ttl = annotations_of(body).get(names.ANNOTATION_TTL, "")
    end = dialect.read_end(body) if ttl.isdecimal() else None
    return end is not None and end.at_s is not None and now_s - end.at_s > int(ttl)


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
        is_removed = (why or is_expired(dialect, body, now_s)) and _remove(api, dialect.kind, body)
        if not is_removed:
            left.append(body)
        elif why:
            logger.warning("%s %s: removed", name_of(body), why)
    return left


def sweep(api: Api, dialect: Dialect) -> None:
    """Remove what is abandoned, for a client that has no other reason to list jobs."""
    with contextlib.suppress(ClusterError):
        remove_abandoned(api, dialect, list_main(api, dialect))
    if dialect.prerequisite is None:
        return
    kind, now_s = dialect.prerequisite.kind, time.time()
    with contextlib.suppress(ClusterError):
        for body in api.list(kind, labels=names.LABEL_JOB):
            # its main object never came, or it would have been given to it
            is_marked = names.ANNOTATION_SUBMIT in annotations_of(body)
            if is_marked and now_s - created_s(body) > HALF_SUBMITTED_S:
                _remove(api, kind, body)


def _remove(api: Api, kind: ObjectKind, body: Object) -> bool:
    about = body["metadata"]
    version = about.get("resourceVersion", "")
    try:
        # as it was seen: somebody may have come to wait for it
        api.delete(kind, about["name"], uid=about["uid"], version=version)
    except ClusterError as error:
        logger.debug("%s is abandoned, but stays: %s", about["name"], error)
        return False
    return True

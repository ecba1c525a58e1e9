"""Abandoned jobs: computes without waiting clients, incomplete submissions, and expired jobs.

A client that waits for a compute annotates its object with a deadline, and removes the annotation once the
compute is up. Until the deadline, the compute stays queued without a client. A submission marks its object,
and removes the mark when it starts the object. For kinds without a TTL field, an annotation has the time to
live. No controller reads these annotations. The next client that lists or submits jobs removes them.
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

HALF_SUBMITTED_S = 3600.0  # a submission takes seconds


def list_main(api: Api, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the main objects of all jobs, without the worker objects that they own."""
    bodies = api.list(dialect.kind, labels=names.LABEL_JOB)
    return [body for body in bodies if names.LABEL_FIRST_INDEX not in labels_of(body)]


def may_be_live_compute(dialect: Dialect, body: Object) -> bool:
    """Return whether the object is labeled as a compute and has not ended."""
    work = annotations_of(body).get(names.ANNOTATION_WORK)
    return work == Calls().label and dialect.read_end(body) is None


def is_abandoned(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Return whether a compute's waiting deadline has passed before any of its pods ran."""
    until = annotations_of(body).get(names.ANNOTATION_KEEP_PLACE, "")
    if not until.isdecimal() or now_s < int(until) or not may_be_live_compute(dialect, body):
        return False
    return dialect.read_phase(body) in (ObjectPhase.HELD, ObjectPhase.WAITING)


def is_half_submitted(dialect: Dialect, body: Object, now_s: float) -> bool:
    """Return whether the submission of a job was interrupted, so that the job never starts.

    A job that a user suspended later no longer has the submission's mark. Kueue starts the jobs in a queue.
    """
    is_marked = names.ANNOTATION_SUBMIT in annotations_of(body)
    never_starts = ObjectPhase.HELD if dialect.start else ObjectPhase.WAITING
    is_queued = names.LABEL_QUEUE in labels_of(body)
    is_old = now_s - created_s(body) > HALF_SUBMITTED_S
    return is_marked and is_old and not is_queued and dialect.read_phase(body) is never_starts


def make_half_status(dialect: Dialect, body: Object) -> JobStatus:
    """Return the status of a job that consists of only its main object, without a plan to read."""
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
    """Return whether the time to live of an ended job has passed, for kinds without a TTL field."""
    ttl = annotations_of(body).get(names.ANNOTATION_TTL, "")
    end = dialect.read_end(body) if ttl.isdecimal() else None
    return end is not None and end.at_s is not None and now_s - end.at_s > int(ttl)


def remove_abandoned(
    api: Api, dialect: Dialect, bodies: Sequence[dict[str, Any]]
) -> list[dict[str, Any]]:
    """Remove abandoned jobs that have not changed since they were listed. Return all other jobs."""
    now_s = time.time()
    left = []
    for body in bodies:
        why = (
            "never started, and no client was waiting for it"
            if is_abandoned(dialect, body, now_s)
            else "was never started: its submit was interrupted"
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
    """Remove abandoned jobs, for a client that does not list jobs anyway."""
    with contextlib.suppress(ClusterError):
        remove_abandoned(api, dialect, list_main(api, dialect))
    if dialect.prerequisite is None:
        return
    kind, now_s = dialect.prerequisite.kind, time.time()
    with contextlib.suppress(ClusterError):
        for body in api.list(kind, labels=names.LABEL_JOB):
            # The mark means that it never got a main object as its owner.
            is_marked = names.ANNOTATION_SUBMIT in annotations_of(body)
            if is_marked and now_s - created_s(body) > HALF_SUBMITTED_S:
                _remove(api, kind, body)


def _remove(api: Api, kind: ObjectKind, body: Object) -> bool:
    about = body["metadata"]
    version = about.get("resourceVersion", "")
    try:
        # Only this version: a client may have begun to wait for it since.
        api.delete(kind, about["name"], uid=about["uid"], version=version)
    except ClusterError as error:
        logger.debug("could not remove the abandoned %s: %s", about["name"], error)
        return False
    return True

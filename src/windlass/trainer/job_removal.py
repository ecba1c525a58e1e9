"""Removing a job so that nothing is left, and its name can be used again at once."""

from __future__ import annotations

from windlass import names
from windlass.client.jobs.job import Job
from windlass.client.jobs.run import Prepared
from windlass.client.terminal import say
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.protocol import Engine, as_engine
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import Conflict, NotFound
from windlass.kube.objects.kinds import PODS, SECRETS, ObjectKind
from windlass.kube.objects.naming import part_name
from windlass.trainer.v1_job import TrainerJob
from windlass.waiting import wait_until

_END_S = 120.0
_GONE_S = 60.0  # clusters remove what an object owns in the background


def remove_job(known: TrainerJob, api: Api | None, dialect: Dialect | None) -> None:
    """End it, forget it, and wait until the cluster has removed what it was made of."""
    job = known.job
    if not job.done():
        job.cancel(why="deleted by its client")
        job.wait(_END_S, say=lambda _: say(f"waiting for {job.id} to end"))
    job.remove()
    if api is None or dialect is None:
        return
    is_gone = wait_until(lambda: _is_gone(job.id, api, dialect), timeout_s=_GONE_S, every_s=0.1)
    if not is_gone:
        say(f"the cluster still removes what {job.id} was made of")


def start_when_gone(prepared: Prepared) -> tuple[Job, Engine]:
    """Start a job, also while the cluster still removes objects of one that had its name."""
    started: list[Job] = []
    conflicts: list[Conflict] = []

    def is_started() -> bool:
        try:
            started.append(prepared.start())
        except Conflict as conflict:
            conflicts.append(conflict)
        return bool(started)

    if not wait_until(is_started, timeout_s=_GONE_S / 4, every_s=0.5):
        raise conflicts[-1]
    return started[0], as_engine(prepared.engine)


def _is_gone(job_id: str, api: Api, dialect: Dialect) -> bool:
    objects: list[tuple[ObjectKind, str]] = [
        (dialect.kind, dialect.make_name(job_id)),
        (SECRETS, job_id),
        (SECRETS, part_name(job_id, 0)),
    ]
    if dialect.prerequisite is not None:
        objects.append((dialect.prerequisite.kind, job_id))
    if any(_is_there(api, kind, name) for kind, name in objects):
        return False
    return not api.list(PODS, labels=f"{names.LABEL_JOB}={job_id}")


def _is_there(api: Api, kind: ObjectKind, name: str) -> bool:
    try:
        api.get(kind, name)
    except NotFound:
        return False
    return True

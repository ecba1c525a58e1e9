"""Jobs by the names that users gave them: choosing ids, finding jobs, and removing them.

On a cluster the name is the id, and so the name of the job's object. There are two exceptions. This
machine may already know a job of that id in another place. Or the job runs on this machine, where ids must be
unique across all homes. In both cases the id is generated from the name. The cluster and the local folders
store names, so any process can find a job again. Removing a job deletes all of its objects and files, so its
name is free immediately.
"""

from __future__ import annotations

import contextlib
import fcntl
import re
from collections.abc import Iterator
from pathlib import Path

from windlass import names
from windlass.client.jobs.job import Job
from windlass.client.jobs.job_ids import MAX_ID, is_made_from
from windlass.client.jobs.run import Prepared
from windlass.client.terminal import print_notice
from windlass.engines.cluster.job_secret import read_cluster
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.engine_table import as_engine, make_engine
from windlass.engines.protocol import Engine, JobRef
from windlass.errors import JobNotFound, WindlassError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import Conflict, NotFound
from windlass.kube.objects.kinds import PODS, SECRETS, ObjectKind
from windlass.kube.objects.naming import object_name, part_name
from windlass.near_names import did_you_mean
from windlass.settings import Settings
from windlass.trainer.sdk_errors import JobExists, JobMissing, WrongArgument
from windlass.trainer.statuses import TrainerJob, name_v1
from windlass.trusted import make_own
from windlass.waiting import wait_until

_LABEL = re.compile(names.DNS_LABEL)
_LOCK = "names.lock"
_END_S = 120.0
_GONE_S = 60.0  # clusters remove owned objects in the background


class JobNames:
    """Jobs of one engine in one place, by name."""

    def __init__(self, settings: Settings, *, context: str = "", namespace: str = "") -> None:
        self.engine: Engine = make_engine(settings.engine, settings)
        self._place = {"context": context, "namespace": namespace}
        self._home = Path(str(settings.value("home"))).expanduser() / settings.engine
        self._has_pods = "pods" in self.engine.can
        self._known: dict[str, TrainerJob] = {}

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the lock of the local names. On a cluster, the API server prevents duplicates instead."""
        if self._has_pods:
            yield
            return
        make_own(self._home, below=self._home.parent)
        with (self._home / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def choose_id(self, name: str) -> str:
        """Return the id for a new job of that name, or an empty string to let it be generated."""
        _check_name(name)
        if not name:
            return ""
        with contextlib.suppress(JobMissing):
            known = self.find(name)
            raise JobExists(
                f"job {name} already exists and is {name_v1(known.job.status())}",
                hint=f"call client.delete_job({name!r}), pass replace=True to create_job once it has ended, "
                "or choose another name",
            )
        if not self._has_pods or not self._is_free(name):
            return ""
        self._remove_stale_files(name)
        return name

    def add(self, name: str, job: Job, engine: Engine) -> TrainerJob:
        """Register a job that was just created."""
        self._known[name or job.id] = TrainerJob(name or job.id, job, engine)
        return self._known[name or job.id]

    def find(self, name: str) -> TrainerJob:
        """Return the job of that name. Raise `JobMissing` if there is none."""
        if name not in self._known:
            ref = self._find_ref(name)
            self._known[name] = TrainerJob(name, Job(self.engine, ref), self.engine)
        return self._known[name]

    def list_all(self) -> list[TrainerJob]:
        """Return all jobs that Windlass created in this namespace, newest first."""
        by_ref = {str(one.job.ref): one for one in self._known.values()}
        return [by_ref.get(str(ref)) or self._load_job(ref) for ref in self._list_refs()]

    def forget(self, name: str) -> None:
        """Drop a job from the cache, so that the next lookup reads it again."""
        self._known.pop(name, None)

    def _find_ref(self, name: str) -> JobRef:
        exact = JobRef(self.engine.name, name, self._place["namespace"])
        if name and self._is_free(name):
            try:
                self.engine.status(exact)
            except JobNotFound:
                pass
            else:
                return exact
        refs = self._list_refs()
        for ref in refs:
            if is_made_from(ref.job_id, name) and self.engine.status(ref).name == name:
                return ref
        known = [self._load_job(ref).name for ref in refs]
        hint = did_you_mean(name, known, "list the jobs with client.list_jobs()", alike=0.5)
        raise JobMissing(f"job {name!r} not found", hint=hint)

    def _list_refs(self) -> list[JobRef]:
        namespace = self._place["namespace"]
        refs = [ref for ref in self.engine.jobs() if ref.place == namespace]
        return [ref for ref in refs if self._is_free(ref.job_id)]

    def _load_job(self, ref: JobRef) -> TrainerJob:
        name = ref.job_id
        with contextlib.suppress(WindlassError):  # list unreadable jobs by their ids
            status_name = self.engine.status(ref).name
            name = status_name if is_made_from(ref.job_id, status_name) else name
        return TrainerJob(name, Job(self.engine, ref), self.engine)

    def _is_free(self, job_id: str) -> bool:
        """Return whether no job in another place has that id on this machine."""
        return not self._has_folder(job_id) or read_cluster(self._home, job_id) == self._place

    def _has_folder(self, job_id: str) -> bool:
        return self._has_pods and (self._home / job_id).exists()

    def _remove_stale_files(self, job_id: str) -> None:
        """Remove the local files of a job that was deleted from the cluster without Windlass."""
        if self._has_folder(job_id):
            self.engine.remove(JobRef(self.engine.name, job_id, self._place["namespace"]))


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise WrongArgument(f"a job's name must be a string, not {name!r:.60}")
    is_valid = _LABEL.fullmatch(name) and name[0].isalpha() and len(name) <= MAX_ID
    if name and not is_valid:
        near = object_name(name, MAX_ID)
        raise WrongArgument(
            f"invalid job name {name!r:.80}: use at most {MAX_ID} lowercase letters, digits and hyphens, "
            "starting with a letter",
            hint=f"did you mean {near}?" if near else "my-job",
        )


def remove_job(known: TrainerJob, api: Api | None, dialect: Dialect | None) -> None:
    """End a job, remove it, and wait until the cluster has removed its objects."""
    job = known.job
    if not job.done():
        job.cancel(why="deleted by its client")
        job.wait(_END_S, say=lambda _: print_notice(f"waiting for {job.id} to end"))
    job.remove()
    if api is None or dialect is None:
        return
    is_gone = wait_until(lambda: _is_gone(job.id, api, dialect), timeout_s=_GONE_S, every_s=0.1)
    if not is_gone:
        print_notice(f"the cluster is still removing the objects of {job.id}")


def start_when_gone(prepared: Prepared) -> tuple[Job, Engine]:
    """Start a job, and retry while the cluster still removes objects of an earlier job of that name."""
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
    if any(_exists(api, kind, name) for kind, name in objects):
        return False
    return not api.list(PODS, labels=f"{names.LABEL_JOB}={job_id}")


def _exists(api: Api, kind: ObjectKind, name: str) -> bool:
    try:
        api.get(kind, name)
    except NotFound:
        return False
    return True

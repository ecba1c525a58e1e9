"""Jobs by the names that users gave them. On a cluster the name is the id, and so that of the job's object.

It cannot be where this machine knows a job of that id in another place; nor on this machine itself, where ids
must be unlike all others that any home has: then the id is made from the name. The cluster and the folders
here remember, so any process finds a job again.
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
from windlass.engines.cluster.job_secret import read_cluster
from windlass.engines.protocol import Engine, JobRef, make_engine
from windlass.errors import JobNotFound, WindlassError
from windlass.kube.objects.naming import object_name
from windlass.near_names import did_you_mean
from windlass.settings import Settings
from windlass.trainer.sdk_errors import JobExists, JobMissing, WrongArgument
from windlass.trainer.statuses import name_v1
from windlass.trainer.v1_job import TrainerJob
from windlass.trusted import make_own

_LABEL = re.compile(names.DNS_LABEL)
_LOCK = "names.lock"


class JobNames:
    """The jobs of one engine in one place."""

    def __init__(self, settings: Settings, *, context: str = "", namespace: str = "") -> None:
        self.engine: Engine = make_engine(settings.engine, settings)
        self._place = {"context": context, "namespace": namespace}
        self._home = Path(str(settings.value("home"))).expanduser() / settings.engine
        self._has_pods = "pods" in self.engine.can
        self._known: dict[str, TrainerJob] = {}

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """Meanwhile nobody else takes a name here; on a cluster its API server sees to that."""
        if self._has_pods:
            yield
            return
        make_own(self._home, below=self._home.parent)
        with (self._home / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def choose_id(self, name: str) -> str:
        """The id for a new job of that name; empty: any that is made from it."""
        _check_name(name)
        if not name:
            return ""
        with contextlib.suppress(JobMissing):
            known = self.find(name)
            raise JobExists(
                f"there is a job {name} already: it is {name_v1(known.job.status())}",
                hint=f"client.delete_job({name!r}), create_job(..., replace=True) once it has ended, "
                "or take another name",
            )
        if not self._has_pods or not self._is_free(name):
            return ""
        self._forget_rest(name)
        return name

    def add(self, name: str, job: Job, engine: Engine) -> TrainerJob:
        """A job that was just made."""
        self._known[name or job.id] = TrainerJob(name or job.id, job, engine)
        return self._known[name or job.id]

    def find(self, name: str) -> TrainerJob:
        """The job of that name; `JobMissing` where there is none."""
        if name not in self._known:
            ref = self._find_ref(name)
            self._known[name] = TrainerJob(name, Job(self.engine, ref), self.engine)
        return self._known[name]

    def list_all(self) -> list[TrainerJob]:
        """All jobs that Windlass made in this place, newest first."""
        by_ref = {str(one.job.ref): one for one in self._known.values()}
        return [by_ref.get(str(ref)) or self._read(ref) for ref in self._list_refs()]

    def forget(self, name: str) -> None:
        """Look it up anew when it is asked for again."""
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
        known = [self._read(ref).name for ref in refs]
        hint = did_you_mean(name, known, "client.list_jobs() shows what is there", alike=0.5)
        raise JobMissing(f"there is no job {name!r}", hint=hint)

    def _list_refs(self) -> list[JobRef]:
        namespace = self._place["namespace"]
        refs = [ref for ref in self.engine.jobs() if ref.place == namespace]
        return [ref for ref in refs if self._is_free(ref.job_id)]

    def _read(self, ref: JobRef) -> TrainerJob:
        name = ref.job_id
        with contextlib.suppress(WindlassError):  # one that cannot be read is still there
            status_name = self.engine.status(ref).name
            name = status_name if is_made_from(ref.job_id, status_name) else name
        return TrainerJob(name, Job(self.engine, ref), self.engine)

    def _is_free(self, job_id: str) -> bool:
        """Whether no job in another place has that id here."""
        return not self._has_folder(job_id) or read_cluster(self._home, job_id) == self._place

    def _has_folder(self, job_id: str) -> bool:
        return self._has_pods and (self._home / job_id).exists()

    def _forget_rest(self, job_id: str) -> None:
        """What is left here of a job that somebody removed from the cluster."""
        if self._has_folder(job_id):
            self.engine.remove(JobRef(self.engine.name, job_id, self._place["namespace"]))


def _check_name(name: object) -> None:
    if not isinstance(name, str):
        raise WrongArgument(f"a job's name is text, not {name!r:.60}")
    is_valid = _LABEL.fullmatch(name) and name[0].isalpha() and len(name) <= MAX_ID
    if name and not is_valid:
        near = object_name(name, MAX_ID)
        raise WrongArgument(
            f"{name!r:.80} cannot be a job's name: small letters, digits and -, a letter first, at "
            f"most {MAX_ID}",
            hint=f"did you mean {near}?" if near else "my-job",
        )

"""Engine on Kubernetes: submits, attaches to, resizes, cancels and removes jobs of any kind.

A `Dialect` describes the kind of object. The engine sends a request only when it needs the response.
Each job that this machine has submitted or attached to has a folder under the home, with copies of
its files. Keys stay in the job's Secret and in memory. To resize a compute, the engine patches its
object, creates a second object, or patches a group of pods in the first.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from windlass import names, records
from windlass.engines.cluster.abandoned_jobs import (
    list_main,
    make_half_status,
    may_be_live_compute,
    remove_abandoned,
)
from windlass.engines.cluster.job_recovery import has_unread, read_unread
from windlass.engines.cluster.job_secret import (
    BrokenSubmit,
    NotOurs,
    fetch,
    is_pinned,
    list_folders,
    make_cluster_folder,
    make_files,
    make_job_certificates,
    pin,
    read_cluster,
    record_cluster,
)
from windlass.engines.cluster.lead_connection import LeadDial, LeadSearch
from windlass.engines.cluster.submit import create_objects, find_source, render_documents
from windlass.engines.dialects.dialect import Dialect, MakeWorkers, Patch
from windlass.engines.finished_jobs import forget_old_jobs, read_outcomes
from windlass.engines.protocol import NO_HIDDEN, JobRef, LogReader, check_hidden
from windlass.errors import EngineError, JobNotFound, SpecError
from windlass.kube.client.access import read_identity
from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import ClusterError, Conflict, NotFound
from windlass.kube.diagnosis.blocker import HALF_SUBMITTED
from windlass.kube.objects.fields import Object, annotations_of, uid_of
from windlass.kube.objects.manifests import JobFiles, make_owner, pod_of, read_file_names
from windlass.kube.objects.naming import read_job_id
from windlass.plan.plan import Facts, Plan, read_plan, render_plan
from windlass.settings import Settings
from windlass.spec.pod_spec import PodSize
from windlass.spec.work import Calls
from windlass.trusted import check_folder_owner, make_own
from windlass.wire.blocking_link import Stream
from windlass.wire.identity import CERTIFICATES
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.log_files import LogFiles
from windlass.wire.log_lines import LogQuery
from windlass.wire.results import ResultHeader
from windlass.wire.status import JobStatus, StatusFile

TYPE_CHECKING = False
if TYPE_CHECKING:
    from windlass.engines.cluster.adopted_job import AdoptedJob
    from windlass.engines.cluster.cluster_job import ClusterJob


_UPLOAD_S = 1800.0


def resize_nodes(
    api: Api, dialect: Dialect, plan: Plan, num_nodes: int, workers: PodSize | None
) -> None:
    """Resize a compute to `num_nodes` nodes in total.

    `workers` is the size of all nodes but the first. None keeps their current size.
    """
    if dialect.regroup is not None:
        name = dialect.make_name(plan.job_id)
        patch = dialect.regroup(plan, api.get(dialect.kind, name), num_nodes, workers)
        api.patch(dialect.kind, name, patch, brief=True)
        return
    if dialect.resize is None:
        raise SpecError(
            f"a compute that is a {dialect.kind.name} cannot be resized",
            hint="end it and create another one, or use engine kubernetes",
        )
    if dialect.make_workers is None:
        name = dialect.make_name(plan.job_id)
        api.patch(dialect.kind, name, dialect.resize(num_nodes), brief=True)
    else:
        _TwoObjects(api, dialect, plan, dialect.resize, dialect.make_workers).resize(
            num_nodes, workers
        )


@dataclass(frozen=True, slots=True)
class _TwoObjects:
    """Resizer for a compute whose workers may be the pods of a second object."""

    api: Api
    dialect: Dialect
    plan: Plan
    make_patch: Callable[[int], Patch]
    make_workers: MakeWorkers

    def resize(self, num_nodes: int, size: PodSize | None) -> None:
        if size is not None and pod_of(self.plan).queue:
            raise SpecError(
                "a queue admits all nodes of a compute together, but workers of another size are "
                "a second Job",
                hint="use one size for all nodes, without worker_node_options, or remove queue=",
            )
        workers = self._find()
        if workers is None and size is None:
            self._patch(self.plan.job_id, num_nodes)
            return
        if workers is not None and (num_nodes == 1 or size not in (None, _read_size(workers))):
            self.api.delete(self.dialect.kind, self._name, uid=uid_of(workers))
            workers = None
        self._patch(self.plan.job_id, 1)
        if workers is None and size is not None and num_nodes > 1:
            self._make(size, num_nodes - 1)
        elif workers is not None:
            self._patch(self._name, num_nodes - 1)

    @property
    def _name(self) -> str:
        return names.WORKERS.format(job_id=self.plan.job_id)

    def _find(self) -> Object | None:
        try:
            return self.api.get(self.dialect.kind, self._name)
        except NotFound:
            return None

    def _patch(self, name: str, num_pods: int) -> None:
        self.api.patch(self.dialect.kind, name, self.make_patch(num_pods), brief=True)

    def _make(self, size: PodSize, num_pods: int) -> None:
        main = self.api.get(self.dialect.kind, self.plan.job_id)
        body = self.make_workers(
            self.plan,
            read_file_names(main["spec"]["template"]["spec"], self.plan.job_id),
            size=size,
            num_nodes=num_pods,
            owner=make_owner(self.dialect.kind, main),
        )
        with contextlib.suppress(Conflict):  # another client has just created it
            self.api.create(self.dialect.kind, body, brief=True)


def _read_size(body: Object) -> PodSize:
    text = annotations_of(body).get(names.ANNOTATION_SIZE, "{}")
    return records.read(PodSize, json.loads(text))


def _make_view(
    api: Api,
    dialect: Dialect,
    plan: Plan,
    folder: JobFolder,
    certificates: Mapping[str, bytes],
    *,
    start_timeout_s: float | None = None,
) -> ClusterJob:
    # imported late, so that the import overlaps with the start of the pods
    from windlass.engines.cluster.cluster_job import ClusterJob

    return ClusterJob(api, dialect, plan, folder, certificates, start_timeout_s=start_timeout_s)


def _read_end(folder: Path) -> JobStatus | None:
    """Return the final status from a job's folder, or None if the folder has none."""
    status = StatusFile(JobFolder(folder).status).read_known()
    return status if status is not None and status.phase.is_final else None


class ClusterEngine:
    """Engine whose nodes are pods of the kind of object that its dialect describes."""

    def __init__(self, dialect: Dialect, settings: Settings) -> None:
        self.name = dialect.name
        self.can = dialect.can
        self._dialect = dialect
        self._settings = settings
        self._home = Path(str(settings.value("home"))).expanduser() / self.name
        check_folder_owner(self._home)
        self._apis: dict[tuple[str, str], Api] = {}
        self._views: dict[str, ClusterJob] = {}
        self._adopted: dict[str, AdoptedJob] = {}  # jobs that Windlass did not create
        self._identity: str | None = None
        self._dials: dict[
            str, LeadDial
        ] = {}  # job id -> connection to a compute that this process calls

    def facts(self) -> Facts:
        has_own_hosts = self._dialect.host_name != names.POD_HOST
        return Facts(
            environ={},
            env={names.POD_HOSTS: self._dialect.host_name} if has_own_hosts else {},
            master_port=names.POD_MASTER_PORT,
            replaces_nodes=True,
            lease_s=300.0,
            join_timeout_s=1800.0,
            code_folder=names.CODE_FOLDER,
        )

    def render(
        self,
        plan: Plan,
        *,
        payload: bytes | None = None,
        bundle: Path | None = None,
        with_keys: bool = False,
    ) -> list[dict[str, Any]]:
        """Return all documents of a job for `kubectl apply`.

        Without keys, the documents can only be inspected: the job could not run.
        """
        files = make_files(plan, payload, bundle, is_export=True)
        if with_keys:
            files = files.add_own(make_job_certificates(plan))
        source = find_source(self._api, self._dialect, plan)
        return render_documents(self._dialect, plan, files, source=source)

    # -- starting ------------------------------------------------------------------------------

    def submit(
        self,
        plan: Plan,
        payload: bytes | None,
        bundle: Path | None = None,
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,
    ) -> JobRef:
        hidden = check_hidden(hidden)
        api = self._api()
        files = make_files(plan, payload, bundle, hidden=hidden)
        folder = make_cluster_folder(self._home, api, plan, payload, bundle)
        certificates: dict[str, bytes] = {}

        def add_certificates() -> JobFiles:
            certificates.update(make_job_certificates(plan))
            pin(folder, certificates)
            return files.add_own(certificates)

        try:
            create_objects(
                api,
                self._dialect,
                plan,
                file_names=files.add_own(dict.fromkeys(CERTIFICATES, b"")).names,
                make_files=add_certificates,
                submit=secrets.token_hex(8),
            )
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        try:
            # no default limit, because a job may wait in a queue for days
            limit_s = self._settings.join_timeout_s
            view = _make_view(
                api, self._dialect, plan, folder, certificates, start_timeout_s=limit_s
            )
        except BaseException:
            api.delete(self._dialect.kind, self._dialect.make_name(plan.job_id))
            raise
        self._views[plan.job_id] = view
        if isinstance(plan.work, Calls):
            self._dials[plan.job_id] = self._make_dial(api, plan.job_id, certificates)
        if plan.detach and any(not files.holds(wanted.name) for wanted in plan.inputs):
            self._wait_for_upload(view, plan)
        forget_old_jobs(self._home, lambda folder: _read_end(folder) is not None)
        return JobRef(self.name, plan.job_id, api.namespace)

    def _wait_for_upload(self, view: ClusterJob, plan: Plan) -> None:
        """Wait until the lead has the inputs that did not fit into the Secret. Only this process has them."""
        if not view.wait_for_inputs(_UPLOAD_S):
            raise EngineError(
                f"{plan.job_id} is waiting for its code: its first pod did not start within {_UPLOAD_S:g} s",
                hint=f"run `windlass why {plan.job_id}`, then submit it again or use --in-image",
            )

    # -- reading -------------------------------------------------------------------------------

    def status(self, ref: JobRef) -> JobStatus:
        try:
            return self._know(ref)
        except BrokenSubmit as broken:
            if names.ANNOTATION_SUBMIT not in annotations_of(broken.body):
                raise  # its submit has finished since
            return make_half_status(self._dialect, broken.body)

    def _know(self, ref: JobRef) -> JobStatus:
        """Return the status of a job. Raises BrokenSubmit if its submit did not finish."""
        kept = self._kept(ref)
        return kept if kept is not None else self._find(ref).status()

    def _kept(self, ref: JobRef) -> JobStatus | None:
        """Return the final status from the job's folder, which needs no request, or None."""
        if ref.job_id in self._views:  # a view reads the folder itself
            return None
        return _read_end(self._home / ref.job_id)

    def logs(self, ref: JobRef, query: LogQuery) -> LogReader:
        self._know(ref)
        if ref.job_id in self._adopted:
            return self._adopted[ref.job_id].logs(query)
        folder = JobFolder(self._home / ref.job_id)
        if ref.job_id in self._views:
            self._views[ref.job_id].wants_lines = True
        if has_unread(folder):
            read_unread(self._api_of(ref), folder, container=self._dialect.container)
        return LogFiles(folder, read_plan(folder.plan.read_text()), query)

    def results(
        self, ref: JobRef, *, with_values: bool = True
    ) -> list[tuple[ResultHeader, bytes] | None]:
        status, folder = self._know(ref), JobFolder(self._home / ref.job_id)
        return read_outcomes(folder, self.plan(ref), status, with_values=with_values)

    def _list_jobs(self, api: Api) -> Sequence[Object]:
        bodies = remove_abandoned(api, self._dialect, list_main(api, self._dialect))
        if self._dialect.stays_up:
            bodies = [body for body in bodies if not self._remove_ended(api, read_job_id(body))]
        return sorted(bodies, key=lambda body: str(body["metadata"]["creationTimestamp"]))[::-1]

    def _remove_ended(self, api: Api, job_id: str) -> bool:
        """Remove the object of a job whose end this machine has recorded. Return whether that worked.

        Used for kinds whose pods keep running after the job has ended.
        """
        if self._kept(JobRef(self.name, job_id, api.namespace)) is None:
            return False
        with contextlib.suppress(ClusterError):
            return api.delete(self._dialect.kind, self._dialect.make_name(job_id))
        return False

    def computes(self) -> list[JobRef]:
        api = self._api()
        jobs = [job for job in self._list_jobs(api) if may_be_live_compute(self._dialect, job)]
        return [JobRef(self.name, read_job_id(job), api.namespace) for job in jobs]

    def jobs(self) -> list[JobRef]:
        api = self._api()
        here = [JobRef(self.name, read_job_id(job), api.namespace) for job in self._list_jobs(api)]
        known = {ref.job_id for ref in here}
        # a job of this namespace without a recorded end exists only if the cluster lists it
        return here + [
            ref
            for ref in self.jobs_here()
            if ref.job_id not in known and (ref.place != api.namespace or self._kept(ref))
        ]

    def jobs_here(self) -> list[JobRef]:
        places = ((name, read_cluster(self._home, name)) for name in list_folders(self._home))
        return [JobRef(self.name, name, place["namespace"]) for name, place in places]

    def open_port(self, ref: JobRef, port: int) -> socket.socket:
        if self._kept(ref) is None and (pod := self._find(ref).find_lead()):
            return self._api_of(ref).forward(pod, port)
        raise ConnectionRefusedError(f"node 0 of {ref.job_id} is not running")

    # -- computes ------------------------------------------------------------------------------

    def plan(self, ref: JobRef) -> Plan:
        kept = JobFolder(self._home / ref.job_id).plan
        if kept.exists():
            return read_plan(kept.read_text())
        return self._fetch(ref)[0]

    def dial(self, ref: JobRef) -> Stream:
        if ref.job_id not in self._dials:
            keys = self._fetch(ref)[1]
            self._dials[ref.job_id] = self._make_dial(self._api_of(ref), ref.job_id, keys)
        connection = self._dials[ref.job_id].dial()
        if connection is None:
            raise ConnectionRefusedError(f"node 0 of {ref.job_id} is not running")
        return connection

    def _make_dial(self, api: Api, job_id: str, keys: Mapping[str, bytes]) -> LeadDial:
        return LeadDial(api, job_id, keys, LeadSearch(api, self._dialect, job_id).find_leads)

    def grow(
        self,
        ref: JobRef,
        indexes: Sequence[int],  # noqa: ARG002 - Kubernetes starts the missing ones
        num_nodes: int,
        *,
        hidden: Mapping[str, str] = NO_HIDDEN,  # noqa: ARG002 - in the Secret since the start
        workers: PodSize | None = None,
    ) -> None:
        resize_nodes(self._api_of(ref), self._dialect, self.plan(ref), num_nodes, workers)

    def set_wait_deadline(self, ref: JobRef, until_s: float | None) -> None:
        until = None if until_s is None else f"{until_s:.0f}"
        body = {"metadata": {"annotations": {names.ANNOTATION_KEEP_PLACE: until}}}
        name = self._dialect.make_name(ref.job_id)
        self._api_of(ref).patch(self._dialect.kind, name, body, brief=True)

    def is_made_here(self, ref: JobRef) -> bool:
        return is_pinned(JobFolder(self._home / ref.job_id))

    def identity(self) -> str:
        if self._identity is None:
            self._identity = read_identity(self._api())
        return self._identity

    def let_go(self, ref: JobRef) -> None:
        if ref.job_id in self._views:
            self._views.pop(ref.job_id).release()

    # -- ending --------------------------------------------------------------------------------

    def cancel(
        self, ref: JobRef, *, now: bool = False, why: str = "", interrupt: bool = False
    ) -> None:
        if self._kept(ref) is not None:
            return
        try:
            self._find(ref).cancel(now=now, why=why, interrupt=interrupt)
        except BrokenSubmit:
            self.remove(ref)

    @contextlib.contextmanager
    def hold(self, ref: JobRef) -> Iterator[None]:
        if self._kept(ref) is not None:
            yield
            return
        view = self._find(ref)
        view.hold_lease(True)
        try:
            yield
        finally:
            view.hold_lease(False)

    def remove(self, ref: JobRef) -> None:
        nothing_to_end: tuple[type[EngineError], ...] = (BrokenSubmit,)
        # without its object, the job still has a folder here to remove
        if (self._home / ref.job_id).exists():
            nothing_to_end = (BrokenSubmit, JobNotFound)
        with contextlib.suppress(*nothing_to_end):
            status = self.status(ref)
            is_half = any(c.reason == HALF_SUBMITTED for c in status.conditions)
            if not status.phase.is_final and not is_half:
                raise SpecError(
                    f"{ref.job_id} is still {status.phase.value}",
                    hint=f"run `windlass cancel {ref.job_id}`, then `windlass rm {ref.job_id}`",
                )
        if (adopted := self._adopted.pop(ref.job_id, None)) is not None:
            adopted.remove()
            return
        if ref.job_id in self._views:
            self._views.pop(ref.job_id).close()
        self._api_of(ref).delete(self._dialect.kind, self._dialect.make_name(ref.job_id))
        shutil.rmtree(self._home / ref.job_id, ignore_errors=True)

    # -- helpers -------------------------------------------------------------------------------

    def _api(self, context: str = "", namespace: str = "") -> Api:
        key = (context or self._settings.context, namespace or self._settings.namespace)
        if key not in self._apis:
            self._apis[key] = connect(context=key[0], namespace=key[1], engine=self.name)
        return self._apis[key]

    def _api_of(self, ref: JobRef) -> Api:
        place = read_cluster(self._home, ref.job_id)
        return self._api(place["context"], ref.place or place["namespace"])

    def _fetch(self, ref: JobRef) -> tuple[Plan, Mapping[str, bytes]]:
        folder = JobFolder(self._home / ref.job_id)
        return fetch(self._api_of(ref), self._dialect, ref, folder)

    def _find(self, ref: JobRef) -> ClusterJob | AdoptedJob:
        """Return a job of Windlass, or an adopted one of the same kind or of a related kind."""
        if ref.job_id in self._adopted:
            return self._adopted[ref.job_id]
        try:
            return self._view(ref)
        except (NotOurs, JobNotFound) as error:
            is_other = isinstance(error, NotOurs) and self._dialect.adoption is not None
            kinds = (self._dialect,) if is_other else self._dialect.also_adopts
            if not kinds:
                raise
            from windlass.engines.cluster.adopted_job import find_adopted

            job = find_adopted(self._api_of(ref), kinds, ref.job_id)
            if job is None:
                raise
        self._adopted[ref.job_id] = job
        return job

    def _view(self, ref: JobRef) -> ClusterJob:
        if ref.job_id not in self._views:
            api = self._api_of(ref)
            plan, certificates = self._fetch(ref)
            folder = JobFolder(self._home / ref.job_id)
            make_own(folder.path, below=self._home.parent)
            record_cluster(api, folder)
            write_atomically(folder.plan, render_plan(plan).encode())
            self._views[ref.job_id] = _make_view(api, self._dialect, plan, folder, certificates)
            self._views[ref.job_id].settle()
        return self._views[ref.job_id]

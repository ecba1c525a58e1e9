"""TrainerClient: the calls of Kubeflow's SDKs, v1's and v2's, each a few lines on what Windlass has.

What words mean is `translate`, which job is meant `job_names`, how it is called `statuses` and `train_job`.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from windlass.client.jobs.live_view import LiveView, follow
from windlass.client.jobs.run import prepare_job
from windlass.client.terminal import say
from windlass.engines.engine_table import find_dialect
from windlass.errors import JobNotFound, ProtocolError
from windlass.kube.client.api import Api, connect
from windlass.trainer.engine_pick import pick_engine
from windlass.trainer.job_names import JobNames, remove_job, start_when_gone
from windlass.trainer.options import read_sdk_options
from windlass.trainer.sdk_errors import JobMissing, WrongArgument
from windlass.trainer.statuses import (
    COMPLETE,
    SUCCEEDED,
    V1_WORDS,
    V2_WORDS,
    TrainerJob,
    name_v1,
    name_v2,
    wait_for_report,
)
from windlass.trainer.train_job import find_runtime, list_events, list_runtimes, make_train_job
from windlass.trainer.translate import (
    JobRequest,
    check_settings,
    check_train_keywords,
    is_for_tuning,
    keep_present,
    read_trainer,
    read_v1_job,
)
from windlass.trainer.types import Event, Runtime, TrainJob

_NODE = "node-"


class TrainerClient:
    """Makes, follows and removes jobs in the words of Kubeflow's SDKs."""

    def __init__(self, backend_config: Any = None, *, engine: str = "", **settings: Any) -> None:
        """Decide where jobs run, and say it on stderr.

        backend_config: KubernetesBackendConfig(namespace=...) or LocalProcessBackendConfig().
        engine: what provides the nodes; empty: TrainJobs if the cluster has them, else its Jobs, else local.
        settings: any settings of `wl.submit`, for all jobs of this client: namespace, image, queue, volumes.
        """
        check_settings("TrainerClient", settings, ("backend_config",))
        choice, self._settings = pick_engine(engine, backend_config, settings)
        self._given = {**settings, "engine": choice.engine}
        for name in ("namespace", "context"):
            if self._settings.value(name):
                self._given[name] = self._settings.value(name)
        self._api: Api | None = None
        place = {}
        if find_dialect(choice.engine) is not None:
            self._api = connect(
                context=self._settings.context,
                namespace=self._settings.namespace,
                engine=choice.engine,
            )
            place = {"context": self._api.context, "namespace": self._api.namespace}
        self._names = JobNames(self._settings, **place)
        where = f" in namespace {self._api.namespace}" if self._api else ""
        say(f"TrainerClient uses the engine {choice.engine}{where} ({choice.why})")

    @property
    def engine(self) -> str:
        """What provides the nodes."""
        return self._settings.engine

    # -- v1 ------------------------------------------------------------------------------------

    def create_job(
        self,
        name: str,
        *,
        train_func: Callable[..., Any] | None = None,
        base_image: str | None = None,
        num_workers: int = 1,
        resources_per_worker: Mapping[str, Any] | None = None,
        parameters: Mapping[str, Any] | None = None,
        packages_to_install: list[str] | None = None,
        pip_index_url: str | None = None,
        env_vars: Any = None,
        num_procs_per_worker: int | str | None = None,
        replace: bool = False,
        **more: Any,
    ) -> TrainerJob:
        """Start a function on every worker, and return its job at once.

        name: the job's name, and that of its object on a cluster.
        train_func: the function; it travels with all that it refers to.
        base_image: the pods' image, with Python and torch in it; None: the runtime's.
        num_workers: how many pods.
        resources_per_worker: such as {"cpu": "1", "memory": "2Gi", "gpu": "1"}.
        parameters: what the function is called with, as one dict; None: it is called with nothing.
        packages_to_install: packages for `pip install`, before the function runs.
        pip_index_url: where they come from; None: what the image's pip uses.
        env_vars: environment variables of every rank.
        num_procs_per_worker: ranks per pod; None: one per GPU, else one.
        replace: remove an ended job of that name first, with its logs and results.
        more: queue_name, and any settings of `wl.submit`: restarts, timeout_s, volumes.
        """
        namespace = more.pop("namespace", None)
        if namespace and self._api is not None and namespace != self._api.namespace:
            raise WrongArgument(
                f"this client's jobs are in namespace {self._api.namespace}",
                hint=f"TrainerClient(namespace={namespace!r})",
            )
        request = read_v1_job(
            train_func,
            name=name,
            base_image=base_image,
            parameters=parameters,
            num_workers=num_workers,
            num_procs_per_worker=num_procs_per_worker,
            resources_per_worker=resources_per_worker,
            packages=packages_to_install,
            pip_index_urls=[pip_index_url] if pip_index_url else (),
            env_vars=env_vars,
            more=more,
        )
        request = dataclasses.replace(request, settings=self._add_runtime(request.settings, None))
        return self._start(request, replaces=replace)

    def get_job_status(self, name: str) -> str:
        """Created, Running, Restarting, Suspended, Succeeded or Failed.

        name: the job's name.
        """
        return self._names.find(name).status

    def stream_logs(self, name: str) -> None:
        """Print what ranks print, as it comes, until the job has ended.

        name: the job's name.
        """
        status = follow(self._names.find(name).job, LiveView(), lease=False)
        if status.verdict is not None:
            from windlass.observe.explain import render_verdict

            say(render_verdict(status))

    def wait_for_job_conditions(
        self,
        name: str,
        expected_conditions: Collection[str] = frozenset({SUCCEEDED}),
        wait_timeout: float = 600,
        polling_interval: float = 15,
        callback: Callable[[TrainerJob], object] | None = None,
    ) -> TrainerJob:
        """Wait until the job is in one of these conditions; a failure that is not expected is an error.

        name: the job's name.
        expected_conditions: of Created, Running, Restarting, Suspended, Succeeded and Failed.
        wait_timeout: for how many seconds at most.
        polling_interval: how often to call back at least, in seconds.
        callback: called with the job at each look.
        """
        known = self._names.find(name)
        wait_for_report(
            known,
            name_v1,
            expected_conditions,
            V1_WORDS,
            timeout_s=wait_timeout,
            every_s=polling_interval,
            tell=None if callback is None else lambda: callback(known),
        )
        return known

    # -- v2 ------------------------------------------------------------------------------------

    def train(
        self,
        runtime: str | Runtime | None = None,
        initializer: Any = None,
        trainer: Any = None,
        options: list[Any] | None = None,
        **wrong: Any,
    ) -> str:
        """Start a job, and return its name.

        runtime: a runtime, or its name; None: torch-distributed.
        initializer: the model and the data of a BuiltinTrainer.
        trainer: CustomTrainer(func=...), CustomTrainerContainer(image=...) or BuiltinTrainer(config=...).
        options: Name, Labels, Annotations, TrainerCommand, TrainerArgs, ActiveDeadlineSeconds.
        """
        check_train_keywords(wrong)
        request = read_trainer(trainer, read_sdk_options(options), initializer)
        if type(trainer).__name__ == "BuiltinTrainer" and is_for_tuning(runtime):
            runtime = None  # the recipe runs in the one that is there by itself
        settings = self._add_runtime(request.settings, runtime)
        if settings.get("in_image") and self._api is None:
            raise WrongArgument(
                "a CustomTrainerContainer needs a cluster: this machine runs no images",
                hint="CustomTrainer(func=...) runs here",
            )
        return self._start(dataclasses.replace(request, settings=settings)).name

    def get_job(self, name: str) -> TrainJob:
        """The job as it is now; its status is Created, Running, Complete or Failed.

        name: the job's name.
        """
        return self._look(self._names.find(name))

    def list_jobs(self, runtime: Runtime | None = None) -> list[TrainJob]:
        """The jobs that Windlass made here, newest first; one that cannot be read is said and left out.

        runtime: only those of this runtime; None: all.
        """
        jobs = []
        for known in self._names.list_all():
            try:
                jobs.append(self._look(known))
            except JobNotFound:  # it was removed since
                continue
            except ProtocolError as error:  # written by another version, say
                say(f"{known.name} is left out: {error.message}")
        return [job for job in jobs if runtime is None or job.runtime.name == runtime.name]

    def get_job_logs(
        self, name: str, step: str = f"{_NODE}0", follow: bool = False
    ) -> Iterator[str]:
        """The lines that one node's ranks printed.

        name: the job's name.
        step: which node: node-0, node-1; all: every node's, in order.
        follow: go on with new lines until the job has ended.
        """
        known = self._names.find(name)
        lines = known.job.logs(follow=follow, node=_read_step(step, known))
        return (line.text for line in lines if not line.replaced)

    def get_job_events(self, name: str) -> list[Event]:
        """What happened to the job and its pods, oldest first.

        name: the job's name.
        """
        return list_events(self._names.find(name), self._api, self._dialect)

    def wait_for_job_status(
        self,
        name: str,
        status: Collection[str] = frozenset({COMPLETE}),
        timeout: float = 600,
        polling_interval: float = 2,
        callbacks: list[Callable[[TrainJob], object]] | None = None,
    ) -> TrainJob:
        """Wait until the job has one of these statuses; a failure that is not expected is an error.

        name: the job's name.
        status: of Created, Running, Complete and Failed.
        timeout: for how many seconds at most.
        polling_interval: how often to call back at least, in seconds.
        callbacks: called with the job at each look.
        """
        known = self._names.find(name)

        def tell() -> None:
            job = self._look(known)
            for callback in callbacks or ():
                callback(job)

        wait_for_report(
            known,
            name_v2,
            status,
            V2_WORDS,
            timeout_s=timeout,
            every_s=polling_interval,
            tell=tell if callbacks else None,
        )
        return self._look(known)

    def list_runtimes(self) -> list[Runtime]:
        """The runtimes that jobs can be made from."""
        has_runtimes = "runtime" in self._names.engine.can
        return list_runtimes(self._api if has_runtimes else None, image=self._settings.image)

    def get_runtime(self, name: str) -> Runtime:
        """One runtime; the namespace's wins over the cluster's.

        name: the runtime's name.
        """
        return find_runtime(name or None, self.list_runtimes())

    # -- both ----------------------------------------------------------------------------------

    def delete_job(self, name: str) -> None:
        """End the job if it runs, and remove everything of it: objects, logs, results.

        name: the job's name.
        """
        remove_job(self._names.find(name), self._api, self._dialect)
        self._names.forget(name)

    @property
    def _dialect(self) -> Any:
        return find_dialect(self.engine)

    def _look(self, known: TrainerJob) -> TrainJob:
        return make_train_job(known, self._api, self._dialect)

    def _start(self, request: JobRequest, *, replaces: bool = False) -> TrainerJob:
        flags = {**self._given, **request.settings}
        flags["env"] = {**self._given.get("env", {}), **request.settings.get("env", {})}
        if request.name:
            flags["name"] = request.name
        self._keep_image(flags)
        with self._names.taking():
            if replaces:
                self._remove_ended(request.name)
            prepared = prepare_job(
                *(request.target, request.args, request.kwargs),
                detach=True,
                flags=flags,
                job_id=self._names.choose_id(request.name),
            )
            for note in prepared.notes:
                say(note)
            job, engine = start_when_gone(prepared)
        return self._names.add(request.name, job, engine)

    def _remove_ended(self, name: str) -> None:
        """Remove a job of that name if it has ended; one that runs is left to be refused."""
        with contextlib.suppress(JobMissing):
            known = self._names.find(name)
            if known.job.done():
                remove_job(known, self._api, self._dialect)
                self._names.forget(name)

    def _add_runtime(
        self, given: Mapping[str, Any], runtime: str | Runtime | None
    ) -> dict[str, Any]:
        """The settings of a job with those of its runtime, which has an image where none was given."""
        settings = dict(given)
        if runtime is None and (settings.get("image") or self._settings.image):
            return settings
        wanted = runtime or self._settings.value("runtime") or None
        chosen = find_runtime(wanted, self.list_runtimes())
        if "runtime" in self._names.engine.can:
            settings["runtime"] = chosen.name
        asked = settings.get("image") or self._given.get("image")  # the trainer's, the client's
        if chosen.trainer.image and not asked:
            settings["image"] = chosen.trainer.image
        return settings

    def _keep_image(self, flags: dict[str, Any]) -> None:
        """Take a moving tag as nodes have it; a client with a patch of its own decides this there."""
        if self._dialect is None or flags.get("patch") or self._settings.value("patch"):
            return
        image = str(flags.get("image") or self._settings.image or "")
        patch, note = keep_present(image)
        if patch:
            flags["patch"] = patch
            say(note)


def _read_step(step: str, known: TrainerJob) -> int | None:
    """The node that a step is; None for all."""
    if step == "all":
        return None
    number = step.removeprefix(_NODE)
    if not step.startswith(_NODE) or not number.isdecimal():
        num_nodes = known.job.status().num_nodes
        raise WrongArgument(
            f"there is no step {step!r}",
            hint=f"the steps are node-0 to node-{num_nodes - 1}, or all",
        )
    return int(number)

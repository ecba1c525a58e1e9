"""TrainerClient: the calls of Kubeflow's SDKs, versions 1 and 2, as thin wrappers of Windlass.

`translate` maps arguments, `job_names` finds jobs, and `statuses` and `train_job` describe them.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from windlass.client.jobs.live_view import LiveView, follow
from windlass.client.jobs.run import prepare_job
from windlass.client.terminal import print_notice
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
    """Client that creates, follows and removes jobs with the methods of Kubeflow's SDKs."""

    def __init__(self, backend_config: Any = None, *, engine: str = "", **settings: Any) -> None:
        """Choose where jobs run, and report the choice on stderr.

        backend_config: KubernetesBackendConfig(namespace=...) or LocalProcessBackendConfig().
        engine: provider of the nodes (default: TrainJobs or Jobs if there is a cluster, otherwise local).
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
        print_notice(f"TrainerClient uses the engine {choice.engine}{where} ({choice.why})")

    @property
    def engine(self) -> str:
        """Name of the engine that provides the nodes."""
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
        """Start a function on every worker, and return its job without waiting for it.

        name: the job's name, and that of its object on a cluster.
        train_func: the function, which is sent together with everything it refers to.
        base_image: the pods' image, which needs Python and torch (default: the runtime's).
        num_workers: number of pods.
        resources_per_worker: resources of each pod, such as {"cpu": "1", "memory": "2Gi", "gpu": "1"}.
        parameters: the function's only argument, as one dict (default: no argument).
        packages_to_install: packages that pip installs before the function runs.
        pip_index_url: package index (default: the one configured in the image).
        env_vars: environment variables of every rank.
        num_procs_per_worker: ranks per pod (default: one per GPU, or 1).
        replace: first remove a finished job of that name, with its logs and results.
        more: queue_name, and any settings of `wl.submit`: restarts, timeout_s, volumes.
        """
        namespace = more.pop("namespace", None)
        if namespace and self._api is not None and namespace != self._api.namespace:
            raise WrongArgument(
                f"this client's jobs are in namespace {self._api.namespace}",
                hint=f"create another client with TrainerClient(namespace={namespace!r})",
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
        """Return Created, Running, Restarting, Suspended, Succeeded or Failed.

        name: the job's name.
        """
        return self._names.find(name).status

    def stream_logs(self, name: str) -> None:
        """Print the ranks' output as it arrives, until the job ends.

        name: the job's name.
        """
        status = follow(self._names.find(name).job, LiveView(), lease=False)
        if status.verdict is not None:
            from windlass.observe.explain import render_verdict

            print_notice(render_verdict(status))

    def wait_for_job_conditions(
        self,
        name: str,
        expected_conditions: Collection[str] = frozenset({SUCCEEDED}),
        wait_timeout: float = 600,
        polling_interval: float = 15,
        callback: Callable[[TrainerJob], object] | None = None,
    ) -> TrainerJob:
        """Wait until the job is in one of these conditions. Raise JobFailed if it fails unexpectedly.

        name: the job's name.
        expected_conditions: any of Created, Running, Restarting, Suspended, Succeeded and Failed.
        wait_timeout: longest wait in seconds.
        polling_interval: longest time between two calls of the callback, in seconds.
        callback: called with the job at each check.
        """
        known = self._names.find(name)
        wait_for_report(
            known,
            name_v1,
            expected_conditions,
            V1_WORDS,
            timeout_s=wait_timeout,
            every_s=polling_interval,
            notify=None if callback is None else lambda: callback(known),
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

        runtime: a runtime or its name (default: torch-distributed).
        initializer: the model and the data of a BuiltinTrainer.
        trainer: CustomTrainer(func=...), CustomTrainerContainer(image=...) or BuiltinTrainer(config=...).
        options: Name, Labels, Annotations, TrainerCommand, TrainerArgs, ActiveDeadlineSeconds.
        """
        check_train_keywords(wrong)
        request = read_trainer(trainer, read_sdk_options(options), initializer)
        if type(trainer).__name__ == "BuiltinTrainer" and is_for_tuning(runtime):
            runtime = None  # the recipe needs no special runtime
        settings = self._add_runtime(request.settings, runtime)
        if settings.get("in_image") and self._api is None:
            raise WrongArgument(
                "a CustomTrainerContainer needs a cluster, because this machine does not run images",
                hint="use CustomTrainer(func=...), which runs here",
            )
        return self._start(dataclasses.replace(request, settings=settings)).name

    def get_job(self, name: str) -> TrainJob:
        """Return the current state of a job, with status Created, Running, Complete or Failed.

        name: the job's name.
        """
        return self._describe(self._names.find(name))

    def list_jobs(self, runtime: Runtime | None = None) -> list[TrainJob]:
        """Return the jobs that Windlass created here, newest first. Unreadable ones are reported and skipped.

        runtime: only list jobs of this runtime (default: all jobs).
        """
        jobs = []
        for known in self._names.list_all():
            try:
                jobs.append(self._describe(known))
            except JobNotFound:  # removed in the meantime
                continue
            except ProtocolError as error:  # for example, written by another version
                print_notice(f"skipping {known.name}: {error.message}")
        return [job for job in jobs if runtime is None or job.runtime.name == runtime.name]

    def get_job_logs(
        self, name: str, step: str = f"{_NODE}0", follow: bool = False
    ) -> Iterator[str]:
        """Return an iterator over the lines that one node's ranks printed.

        name: the job's name.
        step: the node, such as node-0 or node-1, or "all" for every node in order.
        follow: keep yielding new lines until the job ends.
        """
        known = self._names.find(name)
        lines = known.job.logs(follow=follow, node=_read_step(step, known))
        return (line.text for line in lines if not line.replaced)

    def get_job_events(self, name: str) -> list[Event]:
        """Return the events of the job and its pods, oldest first.

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
        """Wait until the job has one of these statuses. Raise JobFailed if it fails unexpectedly.

        name: the job's name.
        status: any of Created, Running, Complete and Failed.
        timeout: longest wait in seconds.
        polling_interval: longest time between two calls of the callbacks, in seconds.
        callbacks: called with the job at each check.
        """
        known = self._names.find(name)

        def notify() -> None:
            job = self._describe(known)
            for callback in callbacks or ():
                callback(job)

        wait_for_report(
            known,
            name_v2,
            status,
            V2_WORDS,
            timeout_s=timeout,
            every_s=polling_interval,
            notify=notify if callbacks else None,
        )
        return self._describe(known)

    def list_runtimes(self) -> list[Runtime]:
        """Return the runtimes that jobs can use."""
        has_runtimes = "runtime" in self._names.engine.can
        return list_runtimes(self._api if has_runtimes else None, image=self._settings.image)

    def get_runtime(self, name: str) -> Runtime:
        """Return one runtime. A runtime of the namespace takes precedence over one of the cluster.

        name: the runtime's name.
        """
        return find_runtime(name or None, self.list_runtimes())

    # -- both ----------------------------------------------------------------------------------

    def delete_job(self, name: str) -> None:
        """End the job if it is running, and remove its objects, logs and results.

        name: the job's name.
        """
        remove_job(self._names.find(name), self._api, self._dialect)
        self._names.forget(name)

    @property
    def _dialect(self) -> Any:
        return find_dialect(self.engine)

    def _describe(self, known: TrainerJob) -> TrainJob:
        return make_train_job(known, self._api, self._dialect)

    def _start(self, request: JobRequest, *, replaces: bool = False) -> TrainerJob:
        flags = {**self._given, **request.settings}
        flags["env"] = {**self._given.get("env", {}), **request.settings.get("env", {})}
        if request.name:
            flags["name"] = request.name
        self._keep_image(flags)
        with self._names.locked():
            if replaces:
                self._remove_ended(request.name)
            prepared = prepare_job(
                *(request.target, request.args, request.kwargs),
                detach=True,
                flags=flags,
                job_id=self._names.choose_id(request.name),
            )
            for note in prepared.notes:
                print_notice(note)
            job, engine = start_when_gone(prepared)
        return self._names.add(request.name, job, engine)

    def _remove_ended(self, name: str) -> None:
        """Remove a finished job of that name. A running one is refused later."""
        with contextlib.suppress(JobMissing):
            known = self._names.find(name)
            if known.job.done():
                remove_job(known, self._api, self._dialect)
                self._names.forget(name)

    def _add_runtime(
        self, given: Mapping[str, Any], runtime: str | Runtime | None
    ) -> dict[str, Any]:
        """Return a job's settings with those of its runtime, which provides a default image."""
        settings = dict(given)
        if runtime is None and (settings.get("image") or self._settings.image):
            return settings
        wanted = runtime or self._settings.value("runtime") or None
        chosen = find_runtime(wanted, self.list_runtimes())
        if "runtime" in self._names.engine.can:
            settings["runtime"] = chosen.name
        image = settings.get("image") or self._given.get("image")  # from the trainer or the client
        if chosen.trainer.image and not image:
            settings["image"] = chosen.trainer.image
        return settings

    def _keep_image(self, flags: dict[str, Any]) -> None:
        """Use a node's copy of an image with a moving tag, if it has one. A `patch` setting disables this."""
        if self._dialect is None or flags.get("patch") or self._settings.value("patch"):
            return
        image = str(flags.get("image") or self._settings.image or "")
        patch, note = keep_present(image)
        if patch:
            flags["patch"] = patch
            print_notice(note)


def _read_step(step: str, known: TrainerJob) -> int | None:
    """Return the node index of a step, or None for all nodes."""
    if step == "all":
        return None
    number = step.removeprefix(_NODE)
    if not step.startswith(_NODE) or not number.isdecimal():
        num_nodes = known.job.status().num_nodes
        raise WrongArgument(
            f"unknown step {step!r}",
            hint=f"the steps are node-0 to node-{num_nodes - 1}, or all",
        )
    return int(number)

"""Namespace for the cases on a user's cluster, checked before any case starts and restored afterwards.

If the settings name a namespace, the cases run in it, provided that it has no jobs. Otherwise one is created
for the run. Missing APIs or permissions raise one error before anything is created. A first job checks that
pods start.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from windlass import names
from windlass.client.jobs.job import Job
from windlass.client.jobs.run import Prepared, prepare_job
from windlass.client.terminal import print_notice
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.engine_table import load_dialect
from windlass.errors import EngineError, SpecError, WaitTimeout
from windlass.kube.client.access import check_needed, check_needs, may
from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import Forbidden, NotFound
from windlass.kube.objects.fields import name_of
from windlass.kube.objects.kinds import NAMESPACES
from windlass.observe.explain import explain
from windlass.settings import Settings
from windlass.waiting import wait_until

LABEL = "windlass-conformance"
_STEM = "windlass-conformance"
# settings that a user's cluster may require of every pod, without those that the cases test
_CARRIED = (
    *("context", "python", "cpus", "memory", "ephemeral_storage", "shm", "requests"),
    *("node_selector", "tolerations", "priority_class", "queue", "runtime", "service_account"),
    *("run_as", "pull_secrets", "annotations", "patch"),
)
_FIRST_JOB_S = 900.0  # includes the time to pull its image
_KNOWN_S = 60.0
_GONE_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConformancePlace:
    """Properties that all jobs of the cases share. `config` is a settings file, and `label` marks objects."""

    api: Api
    image: str
    config: str
    label: str


@contextmanager
def open_place(settings: Settings) -> Iterator[ConformancePlace]:
    """Provide a namespace. One that was created for the run is deleted afterwards."""
    dialect = load_dialect(settings.engine)
    run = secrets.token_hex(4)
    is_own = not settings.namespace
    name = f"{_STEM}-{run}" if is_own else settings.namespace
    prepared = _prepare_first(settings, name, run)
    api = connect(context=settings.context, namespace=name, engine=settings.engine)
    check_needs(api, dialect.needs)
    if not is_own:
        _check_exists(api)
    check_needed(api, rights=dialect.rights)
    if is_own:
        _create(api)
    else:
        _check_has_no_jobs(api, dialect)
    print_notice(
        f"engine {dialect.name} in namespace {name}{', made for this run' if is_own else ''}"
    )
    try:
        _run_first(prepared)
        yield ConformancePlace(
            api=api,
            image=settings.image,
            config=render_config(settings, {LABEL: run}),
            label=f"{LABEL}={run}",
        )
    finally:
        if is_own:
            _remove_namespace(api)


# -- before anything is created ------------------------------------------------------------------


def _prepare_first(settings: Settings, namespace: str, run: str) -> Prepared:
    """Prepare a job of two pods that does nothing, so that invalid or missing settings raise here."""
    flags = {
        "engine": settings.engine,
        "context": settings.context,
        "namespace": namespace,
        "image": settings.image,
        "in_image": True,
        "nodes": 2,
        "name": "conformance",
        "labels": {LABEL: run},
    }
    return prepare_job(["true"], detach=True, flags=flags)


def _check_exists(api: Api) -> None:
    try:
        api.get(NAMESPACES, api.namespace)
    except NotFound as error:
        raise EngineError(
            f"namespace {api.namespace} not found",
            hint=f"run `kubectl create namespace {api.namespace}`, or omit --namespace "
            "to use a temporary one",
        ) from error
    except Forbidden:
        pass  # users with rights in one namespace may not be allowed to read it


def _check_has_no_jobs(api: Api, dialect: Dialect) -> None:
    if jobs := api.list(dialect.kind, labels=names.LABEL_JOB):
        raise SpecError(
            f"namespace {api.namespace} already has jobs ({name_of(jobs[0])}), but the cases count jobs",
            hint="pass a namespace without jobs, or omit --namespace to use a temporary one",
        )


def _create(api: Api) -> None:
    if not may(api, "create", "namespaces"):
        raise SpecError(
            "the cases need a namespace without jobs, but you may not create one",
            hint="pass one with --namespace",
        )
    api.create(NAMESPACES, {"metadata": {"name": api.namespace}})


# -- the first job -------------------------------------------------------------------------------


def _run_first(prepared: Prepared) -> None:
    """Run a first job, which pulls the images and reports any problem that keeps pods from running."""
    job = prepared.start()
    try:
        status = job.wait(_FIRST_JOB_S, say=lambda _: print_notice(_explain(job)))
        if status.phase.value != "succeeded":
            raise EngineError(f"the first test job (two pods) failed: {_explain(job)}")
    except WaitTimeout as error:
        raise EngineError(
            f"the first test job (two pods) did not start within {_FIRST_JOB_S:g} s: {_explain(job)}",
            hint=f"run `windlass doctor -e {job.ref.engine} --deep` to check what pods need",
        ) from error
    finally:
        job.cancel(now=True)
        job.wait(_KNOWN_S)
        job.remove()


def _explain(job: Job) -> str:
    return explain(job.status(), now_s=time.time()).sentence


def _remove_namespace(api: Api) -> None:
    name = api.namespace
    api.delete(NAMESPACES, name)
    is_gone = wait_until(
        lambda: not api.list(NAMESPACES, fields=f"metadata.name={name}"),
        timeout_s=_GONE_S,
        every_s=0.5,
        say=lambda _: print_notice(f"waiting for namespace {name} to be deleted"),
    )
    if not is_gone:
        print_notice(f"namespace {name} is still being deleted: kubectl get namespace {name}")


# -- settings ------------------------------------------------------------------------------------


def render_config(settings: Settings, labels: Mapping[str, str]) -> str:
    """Render a settings file with the user's settings that apply to every pod."""
    values = {name: settings.value(name) for name in _CARRIED if settings.origin(name) != "default"}
    values["labels"] = {**settings.labels, **labels}
    return "".join(f"{name} = {_render_toml(value)}\n" for name, value in values.items())


def _render_toml(value: Any) -> str:
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(key))} = {_render_toml(each)}" for key, each in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(_render_toml(each) for each in value)}]"
    return json.dumps("none" if value is None else value, ensure_ascii=False)

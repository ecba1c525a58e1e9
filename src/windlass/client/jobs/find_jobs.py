"""Lookup of jobs by reference, by ID, by the start of an ID, or by name.

Uses engines only through their protocol.
"""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterable, Iterator

from windlass import names
from windlass.client.jobs.job import Job
from windlass.client.jobs.job_ids import is_made_from, split_call
from windlass.engines.engine_table import (
    check_engine_name,
    engine_names_here,
    make_compute_engine,
    make_engine,
)
from windlass.engines.protocol import Engine, JobRef
from windlass.errors import EngineMissing, SpecError, WindlassError
from windlass.settings import Settings, read_settings_here

logger = logging.getLogger(__name__)

_LABEL = re.compile(names.DNS_LABEL)


def attach(ref: str | JobRef) -> Job:
    """Return a handle on an existing job.

    ref: `local://ID` or `kubernetes://NAMESPACE/ID`, the job's ID, the start of its ID, or its name.
    """
    settings = read_settings_here({})
    return find_job(str(ref), settings)


def jobs() -> list[Job]:
    """Return all jobs of the engine in the settings, and all jobs with a folder on this machine."""
    settings = read_settings_here({})
    return list_jobs(settings)


def list_jobs(settings: Settings) -> list[Job]:
    """Return all jobs of the configured engine, and those with a folder on this machine.

    If a flag chose the engine, only that engine is asked.
    """
    jobs_by_ref: dict[str, Job] = {}
    check_engine_name(settings.engine)
    is_asked = settings.origin("engine").startswith("flag")
    names_here = engine_names_here(settings)
    for engine in _make_engines(
        [name for name in names_here if name == settings.engine or not is_asked], settings
    ):
        refs = engine.jobs() if engine.name == settings.engine else engine.jobs_here()
        jobs_by_ref |= {str(ref): Job(engine, ref) for ref in refs}
    return list(jobs_by_ref.values())


def list_jobs_here(settings: Settings) -> list[Job]:
    """Return the jobs that were started or viewed from this machine."""
    engines = _make_engines(engine_names_here(settings), settings)
    return [Job(engine, ref) for engine in engines for ref in engine.jobs_here()]


def _make_engines(engine_names: Iterable[str], settings: Settings) -> Iterator[Engine]:
    """Yield engines by name. Skip engines of other packages that cannot be loaded, if not configured."""
    for name in engine_names:
        try:
            yield make_engine(name, settings)
        except EngineMissing as error:
            if name == settings.engine:
                raise
            logger.warning("%s: its jobs are not listed", error.message)


def find_job(text: str, settings: Settings) -> Job:
    """Return the job that `text` names. COMPUTE.CALL is a call on a compute, unless a job has that name."""
    name, separator, job_id = text.rpartition("://")
    if not job_id:
        raise SpecError("no job given", hint="run `windlass ls` to list the jobs")
    job_here = None if separator else _find_here(job_id, settings)
    if job_here is not None:
        return job_here
    compute, call = split_call(text)
    if call:
        from windlass.client.compute.calls.call_job import attach_call
        from windlass.client.compute.nodes.compute_owners import check_compute_owner

        job = find_job(compute, settings)
        if not compute.endswith(job.id):  # found by name, and any user may have taken that name
            check_compute_owner(make_compute_engine(job.ref.engine, settings), job.ref)
        return attach_call(job, f"{job.id}.{call}")
    if separator:
        return _find_at(make_engine(name, settings), job_id)
    engine = make_engine(settings.engine, settings)
    return _choose(engine, _match(engine, engine.jobs(), job_id), job_id)


def _find_here(job_id: str, settings: Settings) -> Job | None:
    """Return the job with a folder on this machine that `job_id` names, or None."""
    check_engine_name(settings.engine)
    ordered_names = sorted(engine_names_here(settings), key=lambda name: name != settings.engine)
    for engine in _make_engines(ordered_names, settings):
        if matches := _match(engine, engine.jobs_here(), job_id):
            return _choose(engine, matches, job_id)
    return None


def _find_at(engine: Engine, job_id: str) -> Job:
    """Return a job by its reference."""
    place, _, inside = job_id.rpartition("/")
    if not inside:
        raise SpecError("no job given", hint="run `windlass ls` to list the jobs")
    if place and "pods" in engine.can:
        for label in (place, inside):
            if not _LABEL.fullmatch(label):
                raise SpecError(
                    f"{label!r:.80} is not valid in a job reference",
                    hint=f"use {engine.name}://NAMESPACE/ID",
                )
        return Job(engine, JobRef(engine.name, inside, place))
    return _choose(engine, _match(engine, engine.jobs(), job_id), job_id)


def _match(engine: Engine, known: list[JobRef], job_id: str) -> list[JobRef]:
    return (
        [ref for ref in known if ref.job_id == job_id]
        or _named(engine, known, job_id)
        or [ref for ref in known if ref.job_id.startswith(job_id)]
    )


def _choose(engine: Engine, matches: list[JobRef], job_id: str) -> Job:
    if len(matches) == 1:
        return Job(engine, matches[0])
    if not matches:
        ref = JobRef(engine.name, job_id)
        engine.status(ref)  # raises unless another program created the job
        return Job(engine, ref)
    raise SpecError(
        f"{job_id!r} is ambiguous: it matches {', '.join(ref.job_id for ref in matches[:5])}",
        hint="use more of the ID",
    )


def _named(engine: Engine, known: list[JobRef], name: str) -> list[JobRef]:
    """Return the newest job of that name, because names may be reused.

    On a cluster only the IDs are compared. Asking every job for its name would take seconds.
    """
    if "pods" in engine.can:
        return [ref for ref in known if is_made_from(ref.job_id, name)][:1]
    for ref in known:
        with contextlib.suppress(WindlassError):  # skip jobs that cannot be read
            if engine.status(ref).name == name:
                return [ref]
    return []

"""Finding jobs again: by reference, by id, by the start of an id, by name.

Knows engines only through their protocol.
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
    """A handle on a job that exists already.

    ref: `local://ID` or `kubernetes://NAMESPACE/ID`, the job's id, the start of its id, or its name.
    """
    settings = read_settings_here({})
    return find_job(str(ref), settings)


def jobs() -> list[Job]:
    """All jobs of the engine in the settings and all that this machine has a folder of, newest first."""
    settings = read_settings_here({})
    return list_jobs(settings)


def list_jobs(settings: Settings) -> list[Job]:
    """All jobs of the engine that is set, and those that this machine has a folder of.

    An engine that was asked for by a flag is asked alone.
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
    """Those that were started or looked at from this machine: what may be called one's own."""
    engines = _make_engines(engine_names_here(settings), settings)
    return [Job(engine, ref) for engine in engines for ref in engine.jobs_here()]


def _make_engines(engine_names: Iterable[str], settings: Settings) -> Iterator[Engine]:
    """Yield engines by name, without those of other packages that are not set and cannot be loaded."""
    for name in engine_names:
        try:
            yield make_engine(name, settings)
        except EngineMissing as error:
            if name == settings.engine:
                raise
            logger.warning("%s: its jobs are not looked for", error.message)


def find_job(text: str, settings: Settings) -> Job:
    """The one job `text` means; COMPUTE.CALL is a call on a compute, unless a job has that name."""
    name, separator, job_id = text.rpartition("://")
    if not job_id:
        raise SpecError("which job?", hint="windlass ls shows them")
    job_here = None if separator else _find_here(job_id, settings)
    if job_here is not None:
        return job_here
    compute, call = split_call(text)
    if call:
        from windlass.client.compute.calls.call_job import attach_call
        from windlass.client.compute.nodes.compute_owners import check_compute_owner

        job = find_job(compute, settings)
        if not compute.endswith(job.id):  # a name led to it, which anybody may have taken
            check_compute_owner(make_compute_engine(job.ref.engine, settings), job.ref)
        return attach_call(job, f"{job.id}.{call}")
    if separator:
        return _find_at(make_engine(name, settings), job_id)
    engine = make_engine(settings.engine, settings)
    return _choose(engine, _match(engine, engine.jobs(), job_id), job_id)


def _find_here(job_id: str, settings: Settings) -> Job | None:
    """Among the jobs that this machine has a folder of."""
    check_engine_name(settings.engine)
    by_turns = sorted(engine_names_here(settings), key=lambda name: name != settings.engine)
    for engine in _make_engines(by_turns, settings):
        if matches := _match(engine, engine.jobs_here(), job_id):
            return _choose(engine, matches, job_id)
    return None


def _find_at(engine: Engine, job_id: str) -> Job:
    """A job by its reference."""
    place, _, inside = job_id.rpartition("/")
    if not inside:
        raise SpecError("which job?", hint="windlass ls shows them")
    if place and "pods" in engine.can:
        for label in (place, inside):
            if not _LABEL.fullmatch(label):
                raise SpecError(
                    f"{label!r:.80} cannot be in a reference", hint=f"{engine.name}://NAMESPACE/ID"
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
        engine.status(ref)  # where it is not what others made, this says what is there instead
        return Job(engine, ref)
    raise SpecError(
        f"{job_id!r} could be any of {', '.join(ref.job_id for ref in matches[:5])}",
        hint="write more of the id",
    )


def _named(engine: Engine, known: list[JobRef], name: str) -> list[JobRef]:
    """The newest job of that name: a name may be used again.

    On a cluster the id alone tells: to ask every job for its name would take seconds.
    """
    if "pods" in engine.can:
        return [ref for ref in known if is_made_from(ref.job_id, name)][:1]
    for ref in known:
        with contextlib.suppress(WindlassError):  # one that cannot be read is not the one meant
            if engine.status(ref).name == name:
                return [ref]
    return []

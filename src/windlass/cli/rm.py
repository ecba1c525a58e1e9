"""`windlass rm`: remove ended jobs."""

from __future__ import annotations

import click

from windlass.cli.flags import jobs_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.client.jobs.find_jobs import find_job, list_jobs_here
from windlass.client.jobs.job import Job
from windlass.client.terminal import say
from windlass.errors import EngineError, SpecError


@click.command()
@jobs_argument(required=False)
@click.option("--ended", is_flag=True, help="all jobs of this machine that have ended")
@json_option
def rm(job_texts: tuple[str, ...], ended: bool, as_json: bool) -> None:
    """Remove each JOB with its logs and results; the ids that are gone are printed."""
    settings = load_settings()
    if not job_texts and not ended:
        raise SpecError(
            "which job?", hint="windlass rm JOB..., or windlass rm --ended for all ended"
        )
    jobs = {job.id: job for job in (find_job(text, settings) for text in job_texts)}
    _check_ended(list(jobs.values()))
    if ended:
        jobs |= {job.id: job for job in list_jobs_here(settings) if _has_ended(job)}
    for job in jobs.values():
        job.remove()
    if as_json:
        print_json(list(jobs))
    else:
        for job_id in jobs:
            click.echo(job_id)
    if not jobs:
        say("no ended job is here")


def _has_ended(job: Job) -> bool:
    """Whether it can go; of one that cannot be read, `remove` itself finds out whether it is alive."""
    try:
        return job.done()
    except EngineError:
        return True


def _check_ended(jobs: list[Job]) -> None:
    """Nothing is removed unless everything can be."""
    alive = [job for job in jobs if not _has_ended(job)]
    if alive:
        phases = ", ".join(f"{job.id} is still {job.status().phase.value}" for job in alive)
        named = " ".join(job.id for job in alive)
        raise SpecError(phases, hint=f"windlass cancel {named}, then rm again")

"""`windlass cancel` and `windlass rm`: cancel jobs and wait for them, and remove ended jobs."""

from __future__ import annotations

import click

from windlass import names
from windlass.cli.flags import jobs_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.cli.verb_table import Verb
from windlass.client.jobs.find_jobs import find_job, list_jobs_here
from windlass.client.jobs.job import Job
from windlass.client.terminal import print_notice
from windlass.errors import EngineError, SpecError, WaitTimeout, count_noun
from windlass.wire.states import RankState
from windlass.wire.status import JobStatus

_TIMEOUT_S = 120.0


@click.command(cls=Verb)
@jobs_argument(required=True)
@click.option("--now", is_flag=True, help="Send SIGKILL immediately, without SIGTERM first")
@json_option
def cancel(job_texts: tuple[str, ...], now: bool, as_json: bool) -> int:
    """Cancel each JOB, and wait until all have ended.

    The ranks receive SIGTERM, and SIGKILL after the job's --grace time. Cancelling a job that has already
    ended is not an error.
    """
    settings = load_settings()
    jobs = [
        find_job(text, settings) for text in job_texts
    ]  # an unknown job raises before any is cancelled
    before = {job.id: job.status().phase for job in jobs}
    for job in jobs:
        job.cancel(now=now, why="windlass cancel")
    try:
        ended = [_wait(job) for job in jobs]
    except KeyboardInterrupt:
        print_notice("no longer waiting; the ranks are still being stopped")
        return names.EXIT_INTERRUPTED
    for job, status in zip(jobs, ended, strict=True):
        already = " already" if before[job.id].is_final else ""
        print_notice(f"{job.id} is{already} {status.phase.value}")
    if as_json:
        print_json([{"job_id": status.job_id, "phase": status.phase} for status in ended])
    return names.EXIT_OK


def _wait(job: Job) -> JobStatus:
    try:
        return job.wait(_TIMEOUT_S, say=lambda waited_s: _print_waiting(job, waited_s))
    except WaitTimeout as error:
        raise WaitTimeout(error.message, hint=f"run `windlass cancel --now {job.id}`") from error


def _print_waiting(job: Job, waited_s: float) -> None:
    num_running = job.status().count(RankState.RUNNING)
    ranks = count_noun(num_running, "rank")
    print_notice(f"waiting {waited_s:.0f} s for {ranks} of {job.id} to stop; --now kills them")


@click.command(cls=Verb)
@jobs_argument(required=False)
@click.option("--ended", is_flag=True, help="Remove all ended jobs of this machine")
@json_option
def rm(job_texts: tuple[str, ...], ended: bool, as_json: bool) -> None:
    """Remove each ended JOB with its logs and results.

    Prints the IDs of the removed jobs.
    """
    settings = load_settings()
    if not job_texts and not ended:
        raise SpecError(
            "no job given",
            hint="run `windlass rm JOB...`, or `windlass rm --ended` for all ended jobs",
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
        print_notice("there are no ended jobs on this machine")


def _has_ended(job: Job) -> bool:
    """Return whether a job can be removed. True if it cannot be read, as `remove` checks it again."""
    try:
        return job.done()
    except EngineError:
        return True


def _check_ended(jobs: list[Job]) -> None:
    """Raise SpecError if a job still runs, so that all jobs are removed or none."""
    alive = [job for job in jobs if not _has_ended(job)]
    if alive:
        phases = ", ".join(f"{job.id} is still {job.status().phase.value}" for job in alive)
        named = " ".join(job.id for job in alive)
        raise SpecError(phases, hint=f"run `windlass cancel {named}`, then `windlass rm` again")

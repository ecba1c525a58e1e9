"""`windlass cancel`: end jobs, and stay until they have ended."""

from __future__ import annotations

import click

from windlass import names
from windlass.cli.flags import jobs_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.job import Job
from windlass.client.terminal import say
from windlass.errors import WaitTimeout
from windlass.wire.states import RankState
from windlass.wire.status import JobStatus

_TIMEOUT_S = 120.0


@click.command()
@jobs_argument(required=True)
@click.option("--now", is_flag=True, help="SIGKILL at once, without asking first")
@json_option
def cancel(job_texts: tuple[str, ...], now: bool, as_json: bool) -> int:
    """End each JOB: its ranks get SIGTERM, and SIGKILL after the job's grace.

    Returns when all have ended. Cancelling a job that has ended already is not an error.
    """
    settings = load_settings()
    jobs = [find_job(text, settings) for text in job_texts]  # an unknown one ends nothing
    before = {job.id: job.status().phase for job in jobs}
    for job in jobs:
        job.cancel(now=now, why="windlass cancel")
    try:
        ended = [_wait(job) for job in jobs]
    except KeyboardInterrupt:
        say("no longer waiting; the ranks are still being stopped")
        return names.EXIT_INTERRUPTED
    for job, status in zip(jobs, ended, strict=True):
        already = " already" if before[job.id].is_final else ""
        say(f"{job.id} is{already} {status.phase.value}")
    if as_json:
        print_json([{"job_id": status.job_id, "phase": status.phase} for status in ended])
    return names.EXIT_OK


def _wait(job: Job) -> JobStatus:
    try:
        return job.wait(_TIMEOUT_S, say=lambda waited_s: _say_waiting(job, waited_s))
    except WaitTimeout as error:
        raise WaitTimeout(error.message, hint=f"windlass cancel --now {job.id}") from error


def _say_waiting(job: Job, waited_s: float) -> None:
    left = job.status().count(RankState.RUNNING)
    say(f"waiting {waited_s:.0f} s for {left} rank(s) of {job.id} to stop; --now kills them")

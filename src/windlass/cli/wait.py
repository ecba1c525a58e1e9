"""`windlass wait`: until a job has ended, saying every 10 s what it waits for."""

from __future__ import annotations

import time

import click

from windlass import names
from windlass.cli.error_output import say_verdict
from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.job import Job
from windlass.client.jobs.live_view import render_seconds, render_status_line
from windlass.client.terminal import say
from windlass.errors import SpecError
from windlass.observe.verdict import exit_code_of
from windlass.settings import read_duration
from windlass.wire.status import Phase


@click.command()
@job_argument
@click.option("--timeout", metavar="TIME", help="give up waiting after this; the job goes on")
@json_option
def wait(job_text: str, timeout: str | None, as_json: bool) -> int:
    """Wait until JOB has ended.

    Exits 0 if it succeeded, 1 if it failed, 3 if it could not start, if its end is not known, or if the wait
    timed out.
    """
    timeout_s = None if timeout is None else _read_timeout(timeout)
    job = find_job(job_text, load_settings())
    try:
        status = job.wait(timeout_s, say=lambda waited_s: _say_waiting(job, waited_s))
    except KeyboardInterrupt:
        say(f"no longer waiting for {job.id}")
        return names.EXIT_INTERRUPTED
    if as_json:
        fields = {"phase": status.phase, "verdict": status.verdict}
        print_json({"job_id": job.id, "ref": str(job.ref), **fields})
    if status.phase is Phase.SUCCEEDED:
        say(f"{job.id} succeeded")
    else:
        say_verdict(status)
    return exit_code_of(status)


def _read_timeout(text: str) -> float:
    try:
        return read_duration(text)
    except SpecError as error:
        raise SpecError(f"--timeout: {error.message}", hint=error.hint) from error


def _say_waiting(job: Job, waited_s: float) -> None:
    line = render_status_line(job.status(), now_s=time.time())
    say(f"waiting for {job.id}, {render_seconds(waited_s)} so far: {line}")

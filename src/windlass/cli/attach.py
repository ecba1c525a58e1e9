"""`windlass attach`: the live view of a running job, earlier lines included, from any terminal.

Attaching only watches: Ctrl-C leaves and cancels nothing, since pressing it here must not end what was
started elsewhere. A job that is not detached lives as long as anybody holds its lease, its `run` or an
`attach`; when the last one leaves, it ends. A detached job needs nobody.
"""

from __future__ import annotations

import sys

import click

from windlass import names
from windlass.cli.error_output import say_verdict
from windlass.cli.flags import job_argument, load_settings
from windlass.cli.show import render_span
from windlass.client.compute.idle_computes import explain_by
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.follow import follow
from windlass.client.jobs.live_view import LiveView
from windlass.client.terminal import say
from windlass.observe.verdict import exit_code_of
from windlass.wire.status import JobStatus, Phase


@click.command()
@job_argument
def attach(job_text: str) -> int:
    """Watch JOB until it has ended, earlier lines included; exits as the job did.

    Ctrl-C leaves, and the job goes on. A job that was not started with --detach ends when nobody is left
    watching it: neither its run nor an attach.
    """
    settings = load_settings()
    job = find_job(job_text, settings)
    before = job.status()
    try:
        explain = explain_by(job.ref, settings)
        status = follow(job, LiveView(), lease=not before.detach, explain=explain)
    except KeyboardInterrupt:
        say(_render_leaving(before))
        return names.EXIT_INTERRUPTED
    sys.stdout.flush()
    if status.phase is Phase.SUCCEEDED:
        say(f"{job.id} succeeded after {render_span(status.created_at_s, status.ended_at_s)}")
    else:
        say_verdict(status)
    return exit_code_of(status)


def _render_leaving(status: JobStatus) -> str:
    end = f"windlass cancel {status.job_id} ends it"
    if status.detach:
        return f"left {status.job_id}; it goes on, and {end}"
    return f"left {status.job_id}; it goes on while its `windlass run` does, and {end}"

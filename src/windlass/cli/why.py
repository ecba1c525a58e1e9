"""`windlass why`: one sentence on why a job waits, runs, or failed; then what more is known."""

from __future__ import annotations

import time

import click

from windlass import records
from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json
from windlass.client.compute.idle_computes import explain_by
from windlass.client.jobs.find_jobs import find_job
from windlass.client.terminal import one_line
from windlass.observe.why import explain
from windlass.settings import start_folder


@click.command()
@job_argument
@json_option
def why(job_text: str, as_json: bool) -> None:
    """Say in one sentence why JOB is pending, what it waits for, or why it failed."""
    settings = load_settings()
    job = find_job(job_text, settings)
    status = explain_by(job.ref, settings)(job.status())
    explanation = explain(status, now_s=time.time(), folder=str(start_folder()))
    if as_json:
        print_json({"ref": str(job.ref), **records.to_json(explanation)})
        return
    click.echo(explanation.sentence)
    for line in explanation.details:
        click.echo(f"  {line.strip()}")
    if explanation.next:
        click.echo(f"  next: {one_line(explanation.next)}")

"""`windlass attach`, `windlass wait` and `windlass port-forward`: stay connected to a running job.

These verbs only watch: Ctrl-C ends the verb and cancels nothing. A job that is not detached lives as long
as a client holds its lease. Its `run` and every `attach` hold it.
"""

from __future__ import annotations

import contextlib
import sys
import time

import click

from windlass import names
from windlass.cli.error_output import say_verdict
from windlass.cli.flags import job_argument, json_option, load_settings
from windlass.cli.show import print_json, render_span
from windlass.cli.verb_table import Verb
from windlass.client.compute.nodes.find_computes import explain_by
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.job import Job
from windlass.client.jobs.live_view import LiveView, follow, render_status_line
from windlass.client.jobs.port_forward import PortForward, check_open, find_here, read_ports
from windlass.client.terminal import print_notice, render_seconds
from windlass.errors import SpecError
from windlass.observe.explain import exit_code_of
from windlass.settings import read_duration
from windlass.wire.status import JobStatus, Phase


@click.command(cls=Verb)
@job_argument
def attach(job_text: str) -> int:
    """Watch JOB until it ends, and exit with its exit code.

    Shows earlier output too. Ctrl-C stops watching, and the job continues. A job that was started without
    --detach ends when its last `run` or `attach` exits.
    """
    settings = load_settings()
    job = find_job(job_text, settings)
    before = job.status()
    try:
        explain = explain_by(job.ref, settings)
        status = follow(job, LiveView(), lease=not before.detach, explain=explain)
    except KeyboardInterrupt:
        print_notice(_render_leaving(before))
        return names.EXIT_INTERRUPTED
    sys.stdout.flush()
    if status.phase is Phase.SUCCEEDED:
        print_notice(
            f"{job.id} succeeded after {render_span(status.created_at_s, status.ended_at_s)}"
        )
    else:
        say_verdict(status)
    return exit_code_of(status)


def _render_leaving(status: JobStatus) -> str:
    end = f"`windlass cancel {status.job_id}` stops it"
    if status.detach:
        return f"left {status.job_id}; it keeps running, and {end}"
    return f"left {status.job_id}; it keeps running while its `windlass run` does, and {end}"


@click.command(cls=Verb)
@job_argument
@click.option(
    "--timeout",
    metavar="TIME",
    help="Stop waiting after this time, such as 5m (default: no limit)",
)
@json_option
def wait(job_text: str, timeout: str | None, as_json: bool) -> int:
    """Wait until JOB has ended.

    Exits 0 if JOB succeeded and 1 if it failed. Exits 3 if it could not start, if its end is unknown, or if
    the wait timed out. A timeout does not end the job.
    """
    timeout_s = None if timeout is None else _read_timeout(timeout)
    job = find_job(job_text, load_settings())
    try:
        status = job.wait(timeout_s, say=lambda waited_s: _print_waiting(job, waited_s))
    except KeyboardInterrupt:
        print_notice(f"no longer waiting for {job.id}")
        return names.EXIT_INTERRUPTED
    if as_json:
        fields = {"phase": status.phase, "verdict": status.verdict}
        print_json({"job_id": job.id, "ref": str(job.ref), **fields})
    if status.phase is Phase.SUCCEEDED:
        print_notice(f"{job.id} succeeded")
    else:
        say_verdict(status)
    return exit_code_of(status)


def _read_timeout(text: str) -> float:
    try:
        return read_duration(text)
    except SpecError as error:
        raise SpecError(f"--timeout: {error.message}", hint=error.hint) from error


def _print_waiting(job: Job, waited_s: float) -> None:
    line = render_status_line(job.status(), now_s=time.time())
    print_notice(f"waiting for {job.id}, {render_seconds(waited_s)} so far: {line}")


@click.command("port-forward", cls=Verb)
@job_argument
@click.argument("port_text", metavar="PORT")
def port_forward(job_text: str, port_text: str) -> int:
    """Forward PORT of this machine to the same port of node 0 of JOB, until Ctrl-C.

    LOCAL:PORT forwards another local port. JOB may be a compute. If the nodes are processes of this machine,
    the address is printed and nothing is forwarded. Ray's dashboard uses port 8265.
    """
    local_port, port = read_ports(port_text)
    job = find_job(job_text, load_settings())
    if job.is_here:
        click.echo(find_here(job, port))
        return 0
    check_open(job, port)
    with contextlib.closing(PortForward(job, port, local_port=local_port)) as forward:
        click.echo(forward.address)
        print_notice(
            f"forwarding {forward.address} to port {port} of node 0 of {job.id}; Ctrl-C stops"
        )
        try:
            forward.serve()
        except KeyboardInterrupt:
            return names.EXIT_INTERRUPTED
    return 0

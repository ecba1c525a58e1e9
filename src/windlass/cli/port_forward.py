"""`windlass port-forward`: a port of node 0, such as Ray's dashboard, at a port of this machine."""

from __future__ import annotations

import contextlib

import click

from windlass import names
from windlass.cli.flags import job_argument, load_settings
from windlass.client.jobs.find_jobs import find_job
from windlass.client.jobs.port_forward import PortForward, check_open, find_here, read_ports
from windlass.client.terminal import say


@click.command("port-forward")
@job_argument
@click.argument("port_text", metavar="PORT")
def port_forward(job_text: str, port_text: str) -> int:
    """Lead PORT of this machine to the same port of JOB's node 0, until Ctrl-C; LOCAL:PORT to another.

    JOB may be a compute. Where nodes are processes of this machine, nothing has to be led: the address is
    printed. Ray's dashboard is PORT 8265.
    """
    local_port, port = read_ports(port_text)
    job = find_job(job_text, load_settings())
    if job.is_here:
        click.echo(find_here(job, port))
        return 0
    check_open(job, port)
    with contextlib.closing(PortForward(job, port, local_port=local_port)) as forward:
        click.echo(forward.address)
        say(f"{forward.address} leads to port {port} of node 0 of {job.id}; Ctrl-C ends it")
        try:
            forward.serve()
        except KeyboardInterrupt:
            return names.EXIT_INTERRUPTED
    return 0

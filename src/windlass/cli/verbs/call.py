"""`windlass call`: call a deployed function or method from the shell, and show its results."""

from __future__ import annotations

import sys
from typing import Any

import click

from windlass import names
from windlass.cli.argument_values import read_blind
from windlass.cli.error_output import say_verdict
from windlass.cli.flags import json_option, place_flags, place_options
from windlass.cli.show import print_json
from windlass.cli.verb_table import Verb
from windlass.cli.verbs import result
from windlass.client.compute.deploy.deployment import get
from windlass.client.jobs.job import Job
from windlass.client.jobs.live_view import LiveView, follow
from windlass.errors import JobNotFound
from windlass.observe.explain import exit_code_of
from windlass.wire.status import Phase


@click.command(
    "call",
    cls=Verb,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
)
@click.argument("name", metavar="NAME[.METHOD]")
@click.argument("words", metavar="[ARG...] [--KEY VALUE...]", nargs=-1, type=click.UNPROCESSED)
@place_options
@json_option
def call(name: str, words: tuple[str, ...], as_json: bool) -> int:
    """Call a deployed function or method, and print what each rank returned.

    Flags of Windlass come before NAME. Everything after NAME is passed to the function: Python values such as
    3, 0.5, [1, 2] or None, and anything else as text. Exits 0 if the call returned and 1 if it failed.
    """
    args, kwargs = read_blind(words)
    remote = _find(name)
    job = type(remote).submit(remote, *args, **kwargs)  # a deployed class may have its own `submit`
    try:
        view = LiveView(out=sys.stderr) if as_json else LiveView()  # stdout is for the JSON
        status = follow(job, view, lease=False)
    except KeyboardInterrupt:
        job.cancel(why="Ctrl-C", interrupt=True)
        return names.EXIT_INTERRUPTED
    sys.stdout.flush()
    _show(job, as_json=as_json)
    if status.phase is not Phase.SUCCEEDED:
        say_verdict(status)
    return exit_code_of(status)


def _find(name: str) -> Any:
    """Return the deployed function, or the method of a deployed class."""
    where = place_flags()
    head, dot, method = name.rpartition(".")
    try:
        return get(name, **where)
    except JobNotFound:
        if not dot:
            raise
        return getattr(get(head, **where), method)


def _show(job: Job, *, as_json: bool) -> None:
    status, outcomes = job.status(), job.outcomes()
    if as_json:
        print_json(result.make_result_rows(status, outcomes))
    elif status.phase is Phase.SUCCEEDED:
        for line in result.render_lines(status, outcomes):
            click.echo(line)

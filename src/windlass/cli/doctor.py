"""`windlass doctor`: what is here, what is missing, how to get it."""

from __future__ import annotations

import sys

import click

from windlass import names, records
from windlass.cli.flags import json_option, load_settings
from windlass.cli.show import one_line, print_json
from windlass.cli.trouble import say
from windlass.client.terminal import paint, wants_colour
from windlass.observe.doctor import Check, check_all

_COLOURS = {"ok": 32, "warn": 33, "missing": 31}


@click.command()
@json_option
def doctor(as_json: bool) -> int:
    """Look at this machine and the ranks' Python. Exits 3 if something is missing that all jobs need."""
    checks = []
    for check in check_all(load_settings()):
        checks.append(check)
        if not as_json:
            _show(check)
    if as_json:
        print_json([records.to_json(check) for check in checks])
    fatal = [check.name for check in checks if check.is_fatal]
    if fatal:
        say(f"nothing can run without: {', '.join(fatal)}")
    return names.EXIT_ENGINE if fatal else names.EXIT_OK


def _show(check: Check) -> None:
    state = paint(f"{check.state:<7}", _COLOURS[check.state], colour=wants_colour(sys.stdout))
    click.echo(f"{state}  {check.name:<15}  {one_line(check.found)}", color=True)
    if check.hint:
        click.echo(f"{'':<7}  {'':<15}  -> {one_line(check.hint)}")
    sys.stdout.flush()

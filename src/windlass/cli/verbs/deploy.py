"""`windlass deploy`: bring up what a script decorates, and its apps."""

from __future__ import annotations

import os
from pathlib import Path

import click

from windlass import records
from windlass.cli.flags import json_option, load_settings, place_options
from windlass.cli.show import print_json
from windlass.client.jobs.target import find_script
from windlass.settings import Settings
from windlass.settings.table import BY_NAME


@click.command()
@click.argument("script", metavar="SCRIPT.py[::NAME]")
@click.option("--replace", is_flag=True, help="end apps of the same name that still run")
@place_options
@json_option
def deploy(script: str, replace: bool, as_json: bool) -> None:
    """Import SCRIPT.py and bring up each decorated function and class and each app in it.

    As each comes up, a line on stdout says its name, what it is and where. A decorated function can then
    be called from anywhere by its name: windlass.get(NAME).
    """
    set_place(load_settings())
    deploy_script(script, replace=replace, as_json=as_json)


def deploy_script(script: str, *, replace: bool = False, as_json: bool = False) -> None:
    """Bring up what a script holds, and tell of each."""
    # imported only now: `--help` needs nothing of it
    from windlass.client.compute.deploy.deployment import deploy, find_deployables, import_script

    file, _, name = script.partition("::")
    module = import_script(find_script(file, Path.cwd()))
    done = []
    for deployed in deploy(find_deployables(module, name), replace=replace):
        done.append(records.to_json(deployed))
        if not as_json:
            click.echo(f"{deployed.name}\t{deployed.kind}\t{deployed.ref}")
    if as_json:
        print_json(done)


def set_place(settings: Settings) -> None:
    """Make flags apply to all that the script makes: it reads its settings from the environment."""
    for name in ("engine", "namespace", "context"):
        if settings.origin(name).startswith("flag"):
            os.environ[BY_NAME[name].variable] = str(settings.value(name))

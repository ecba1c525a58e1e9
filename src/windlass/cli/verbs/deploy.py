"""`windlass deploy`: deploy the decorated functions and classes and the apps of a script."""

from __future__ import annotations

import os
from pathlib import Path

import click

from windlass import records
from windlass.cli.flags import json_option, load_settings, place_options
from windlass.cli.show import print_json
from windlass.cli.verb_table import Verb
from windlass.client.jobs.target import find_script
from windlass.settings import Settings
from windlass.settings.table import BY_NAME


@click.command(cls=Verb)
@click.argument("script", metavar="SCRIPT.py[::NAME]")
@click.option("--replace", is_flag=True, help="End running apps of the same name first")
@place_options
@json_option
def deploy(script: str, replace: bool, as_json: bool) -> None:
    """Import SCRIPT.py and deploy its decorated functions, classes and apps.

    Prints a line with name, kind and address for each. A deployed function can be called from anywhere with
    windlass.get(NAME).
    """
    set_place(load_settings())
    deploy_script(script, replace=replace, as_json=as_json)


def deploy_script(script: str, *, replace: bool = False, as_json: bool = False) -> None:
    """Deploy everything that a script declares, and print one line per deployment or a JSON list."""
    # imported here because `--help` does not need it
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
    """Export the flags to the environment, from which the script reads its settings."""
    for name in ("engine", "namespace", "context"):
        if settings.origin(name).startswith("flag"):
            os.environ[BY_NAME[name].variable] = str(settings.value(name))

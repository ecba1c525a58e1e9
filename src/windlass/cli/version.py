"""`windlass version`."""

from __future__ import annotations

import platform

import click

from windlass import __version__, names
from windlass.cli.flags import json_option
from windlass.cli.show import print_json


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        versions = {"windlass": __version__, "protocol": names.PROTOCOL_VERSION}
        print_json({**versions, "python": platform.python_version()})
    else:
        click.echo(f"windlass {__version__}")

"""`windlass engines`: what each engine needs, what was found of it here, and what it can do."""

from __future__ import annotations

import click

from windlass import records
from windlass.cli.flags import json_option
from windlass.cli.show import print_json, print_table
from windlass.client.terminal import one_line
from windlass.observe.engine_list import list_engines
from windlass.settings import read_settings_here


@click.command()
@click.option("--context", metavar="NAME", help="the kubeconfig context; empty: the current one")
@click.option("--namespace", metavar="NAME", help="the namespace; empty: the context's own")
@json_option
def engines(as_json: bool, **flags: str | None) -> None:
    """List the engines: what their nodes are, what they need, the version found, what they can do."""
    settings = read_settings_here(flags)
    rows = list(list_engines(settings))
    if as_json:
        print_json([records.to_json(row) for row in rows])
        return
    header = ("ENGINE", "NODES", "NEEDS", "FOUND", "CAN")
    print_table(
        header,
        [
            (
                row.name,
                row.makes,
                row.needs or "-",
                one_line(row.version) or "-",
                ", ".join(row.can),
            )
            for row in rows
        ],
    )

"""`windlass engines`: the requirements, detected version and features of each engine."""

from __future__ import annotations

import click

from windlass import records
from windlass.cli.flags import json_option
from windlass.cli.show import print_json, print_table
from windlass.cli.verb_table import Verb
from windlass.client.terminal import one_line
from windlass.observe.engine_list import list_engines
from windlass.settings import read_settings_here


@click.command(cls=Verb)
@click.option("--context", metavar="NAME", help="Kubeconfig context (default: the current context)")
@click.option(
    "--namespace", metavar="NAME", help="Namespace (default: the namespace of the context)"
)
@json_option
def engines(as_json: bool, **flags: str | None) -> None:
    """List the engines.

    Shows the nodes, requirements, detected version and features of each.
    """
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

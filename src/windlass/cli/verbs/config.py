"""`windlass config` and `windlass version`: settings with their origins, and the installed version."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import click

from windlass import __version__, names
from windlass.cli.flags import json_option, load_settings
from windlass.cli.show import print_json, print_table
from windlass.cli.verb_table import NearGroup, Verb
from windlass.client.terminal import print_notice
from windlass.settings import SETTINGS, start_folder


@click.group(cls=NearGroup, invoke_without_command=True)
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Show the settings in effect in this folder, and the source of each.

    Sources, from the highest priority to the lowest:

    \b
    1. flags
    2. environment variables
    3. windlass.toml, or [tool.windlass] in pyproject.toml, here or above
    4. config.toml of the user
    5. defaults
    """  # noqa: D301 - click needs the backspace
    if ctx.invoked_subcommand is not None:
        return
    settings = load_settings()
    if as_json:
        print_json(
            {
                setting.name: {
                    "value": settings.value(setting.name),
                    "origin": settings.origin(setting.name),
                    "flag": setting.flag,
                    "variable": setting.variable,
                    "help": setting.help,
                }
                for setting in SETTINGS
            }
        )
        return
    print_table(
        ("SETTING", "VALUE", "FROM", "MEANING"),
        [
            (s.name, _render(settings.value(s.name)), settings.origin(s.name), s.description)
            for s in SETTINGS
        ],
    )


@config.command("set", short_help="Change a setting of this project.")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="VALUE")
def set_value(name: str, value: str) -> None:
    """Write NAME = VALUE into the windlass.toml of the project.

    Changes the nearest windlass.toml here or above. If there is none, creates one in the project's folder.
    That is the nearest folder with .git, pyproject.toml or setup.py, or else the current folder.
    """
    from windlass.bundle.select import find_root
    from windlass.settings.writing import set_in_project

    folder = start_folder()
    path = set_in_project(name.replace("-", "_"), value, folder, find_root(folder))
    print_notice(f"set {name} in {path}")


def _render(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={text}" for key, text in value.items()) or "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command(cls=Verb)
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        versions = {"windlass": __version__, "protocol": names.PROTOCOL_VERSION}
        print_json({**versions, "python": platform.python_version()})
    else:
        click.echo(f"windlass {__version__}")

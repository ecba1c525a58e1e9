"""`windlass config` and `windlass version`: settings with their origins, and the installed version."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import click

from windlass import __version__, names
from windlass.cli.flags import json_option, load_settings
from windlass.cli.show import print_json, print_table
from windlass.cli.verb_table import NearGroup
from windlass.client.terminal import say
from windlass.settings import SETTINGS, start_folder


@click.group(cls=NearGroup, invoke_without_command=True)
@json_option
@click.pass_context
def config(ctx: click.Context, as_json: bool) -> None:
    """Show the settings that apply in this folder, or set one for the project.

    Flags win over variables, variables over windlass.toml (or [tool.windlass] in pyproject.toml) here or
    above, that over the user's config.toml, and that over the default.
    """
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
            (s.name, _render(settings.value(s.name)), settings.origin(s.name), s.help)
            for s in SETTINGS
        ],
    )


@config.command("set", short_help="Set a setting for this project.")
@click.argument("name", metavar="NAME")
@click.argument("value", metavar="VALUE")
def set_value(name: str, value: str) -> None:
    """Write NAME = VALUE into the project's windlass.toml.

    The file is the nearest one here or above. If there is none, it is made in the project's folder: the
    nearest one with .git, pyproject.toml or setup.py, else this one.
    """
    from windlass.bundle.select import find_root
    from windlass.settings.writing import set_in_project

    folder = start_folder()
    path = set_in_project(name.replace("-", "_"), value, folder, find_root(folder))
    say(f"set {name} in {path}")


def _render(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={text}" for key, text in value.items()) or "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command()
@json_option
def version(as_json: bool) -> None:
    """Print the version."""
    if as_json:
        versions = {"windlass": __version__, "protocol": names.PROTOCOL_VERSION}
        print_json({**versions, "python": platform.python_version()})
    else:
        click.echo(f"windlass {__version__}")

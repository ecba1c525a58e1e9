"""`windlass config`: each setting, its value, and where that came from."""

from __future__ import annotations

from collections.abc import Mapping

import click

from windlass.cli.flags import json_option, load_settings
from windlass.cli.show import print_json, print_table
from windlass.settings import SETTINGS


@click.command()
@json_option
def config(as_json: bool) -> None:
    """Show the settings that apply in this folder.

    Flags win over variables, variables over windlass.toml (or [tool.windlass] in pyproject.toml) here or
    above, that over the user's config.toml, and that over the default.
    """
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


def _render(value: object) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, Mapping):
        return " ".join(f"{key}={text}" for key, text in value.items()) or "-"
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else str(value)

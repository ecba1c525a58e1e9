"""Flags and arguments that several verbs share: a job, `--json`, and one flag a setting.

The flags of a job come from the table of settings, so a new setting is a new flag of `run` and `export` at
once. Values stay text here: the settings read and check them, and say what was wrong.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from windlass.errors import WindlassError
from windlass.settings import SETTINGS, Setting, Settings, read_settings, start_folder

F = TypeVar("F", bound=Callable[..., Any])

_NOT_OF_A_JOB = ("home",)
_SHORT = {"engine": "-e"}
_METAVARS = {
    "int": "N",
    "duration": "TIME",
    "list": "A,B",
    "str": "TEXT",
    "table": "NAME=VALUE",
    "path": "PATH",
}
_SPELT = {"engine": "NAME", "name": "NAME", "python": "PATH"}


def job_settings() -> tuple[Setting, ...]:
    """The settings that one job may differ in."""
    return tuple(setting for setting in SETTINGS if setting.name not in _NOT_OF_A_JOB)


def setting_options(function: F) -> F:
    """One option a setting; those not given are None."""
    for setting in reversed(job_settings()):
        function = _make_option(setting)(function)
    return function


def _make_option(setting: Setting) -> Callable[[F], F]:
    names = [setting.flag, setting.name]
    if setting.name in _SHORT:
        names.insert(0, _SHORT[setting.name])
    is_table = setting.kind == "table"
    metavar = "|".join(setting.choices) or _SPELT.get(setting.name) or _METAVARS[setting.kind]
    more = " (again for more)" if is_table else ""
    return click.option(
        *names, multiple=is_table, metavar=metavar, help=f"{setting.help}{more}", default=None
    )


def given_flags(options: dict[str, Any]) -> dict[str, Any]:
    """The settings among a command's options, as `read_settings` takes them."""
    known = {setting.name for setting in job_settings()}
    return {name: value or None for name, value in options.items() if name in known}


def load_settings() -> Settings:
    """The settings as they hold here, without flags."""
    return read_settings(flags={}, environ=os.environ, start=start_folder())


json_option = click.option("--json", "as_json", is_flag=True, help="print JSON on stdout")


def complete_jobs(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids of jobs that are here; completing must never fail."""
    from windlass.client.jobs import list_jobs

    with contextlib.suppress(WindlassError, OSError):
        return [
            CompletionItem(job.id, help=job.status().phase.value)
            for job in list_jobs(load_settings())
            if job.id.startswith(incomplete)
        ]
    return []


job_argument = click.argument("job_text", metavar="JOB", shell_complete=complete_jobs)


def jobs_argument(*, required: bool) -> Callable[[F], F]:
    return click.argument(
        "job_texts", metavar="JOB...", nargs=-1, required=required, shell_complete=complete_jobs
    )

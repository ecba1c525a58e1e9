"""Flags and arguments that several verbs share: a job, `--json`, and one flag per setting.

The flags of a job come from the table of settings, so a new setting is a new flag of `run` and `export` at
once. Values stay text here: the settings read and check them, and say what was wrong.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from windlass.errors import WindlassError
from windlass.settings import SETTINGS, Setting, Settings, read_settings_here
from windlass.settings.table import EXPORT

F = TypeVar("F", bound=Callable[..., Any])

_NOT_OF_A_JOB = ("home",)
_SHORT = {"engine": "-e"}
_METAVARS = {
    "int": "N",
    "nodes": "N|MIN:MAX",
    "duration": "TIME",
    "list": "A,B",
    "many": "TEXT",
    "str": "TEXT",
    "table": "NAME=VALUE",
    "path": "PATH",
    "quantity": "AMOUNT",
    "patch": "FILE|YAML",
    "bool": "",
}
_SPELT = {"engine": "NAME", "name": "NAME", "python": "PATH"}
_REPEATED = ("table", "many")
_PLACE = "windlass.place"
_PLACE_HELP = {
    "engine": "the engine to look on",
    "namespace": "the namespace to look in; empty: the context's own",
    "context": "the kubeconfig context; empty: the current one",
}


class SettingOption(click.Option):
    """An option that stands under a heading of its own in `--help`."""

    def __init__(self, *args: Any, group: str = "", **options: Any) -> None:
        super().__init__(*args, **options)
        self.group = group


def job_settings(*, with_export: bool = False) -> tuple[Setting, ...]:
    """The settings that one job may differ in."""
    return tuple(
        setting
        for setting in SETTINGS
        if setting.name not in _NOT_OF_A_JOB and (with_export or setting.group != EXPORT)
    )


def setting_options(function: F) -> F:
    """One option per setting; those not given are None."""
    return _add_options(function, job_settings())


def export_options(function: F) -> F:
    """The same, and what only exports can be told."""
    return _add_options(function, job_settings(with_export=True))


def _add_options(function: F, settings: tuple[Setting, ...]) -> F:
    for setting in reversed(settings):
        function = _make_option(setting)(function)
    return function


def _make_option(setting: Setting) -> Callable[[F], F]:
    if setting.kind == "bool":
        names = [f"{setting.flag}/--no-{setting.flag[2:]}", setting.name]
        return click.option(
            *names, cls=SettingOption, group=setting.group, help=setting.help, default=None
        )
    names = [setting.flag, setting.name]
    if setting.name in _SHORT:
        names.insert(0, _SHORT[setting.name])
    is_repeated = setting.kind in _REPEATED
    metavar = "|".join(setting.choices) or _SPELT.get(setting.name) or _METAVARS[setting.kind]
    return click.option(
        *names,
        cls=SettingOption,
        group=setting.group,
        multiple=is_repeated,
        metavar=metavar,
        help=f"{setting.help}{' (may be repeated)' if is_repeated else ''}",
        default=None,
    )


def given_flags(options: dict[str, Any]) -> dict[str, Any]:
    """The settings among a command's options, as `read_settings` takes them."""
    known = {setting.name for setting in job_settings(with_export=True)}
    return {
        name: value if value is False else value or None
        for name, value in options.items()
        if name in known
    }


def load_settings() -> Settings:
    """The settings as they hold here, with the flags that say where jobs are."""
    return read_settings_here(place_flags())


def place_flags() -> dict[str, str]:
    """The flags that say where jobs are, as far as they were given."""
    context = click.get_current_context(silent=True)
    return dict(context.meta.get(_PLACE, {})) if context is not None else {}


def _keep_place(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta.setdefault(_PLACE, {})[param.name] = value


def place_options(function: F) -> F:
    """Where jobs are looked for; `load_settings` knows of it."""
    for setting in reversed([s for s in SETTINGS if s.name in ("engine", "namespace", "context")]):
        function = click.option(
            *([_SHORT[setting.name]] if setting.name in _SHORT else []),
            setting.flag,
            setting.name,
            metavar=_SPELT.get(setting.name, "NAME"),
            help=_PLACE_HELP[setting.name],
            callback=_keep_place,
            expose_value=False,
            is_eager=True,
        )(function)
    return function


json_option = click.option("--json", "as_json", is_flag=True, help="print JSON on stdout")


def complete_jobs(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Ids of jobs that are here; completing must never fail."""
    from windlass.client.jobs.find_jobs import list_jobs

    with contextlib.suppress(WindlassError, OSError):
        return [
            CompletionItem(job.id, help=job.status().phase.value)
            for job in list_jobs(load_settings())
            if job.id.startswith(incomplete)
        ]
    return []


def job_argument(function: F) -> F:
    """One job, and where it is."""
    argument = click.argument("job_text", metavar="JOB", shell_complete=complete_jobs)
    return argument(place_options(function))


def jobs_argument(*, required: bool) -> Callable[[F], F]:
    """Jobs, and where they are."""
    argument = click.argument(
        "job_texts", metavar="JOB...", nargs=-1, required=required, shell_complete=complete_jobs
    )
    return lambda function: argument(place_options(function))

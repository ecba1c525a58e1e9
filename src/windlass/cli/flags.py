"""Flags and arguments that several verbs share: a job, `--json`, and one flag per setting.

The flags of a job come from the table of settings, so a new setting also becomes a flag of `run` and
`export`. Values stay text here. The settings read and check them, and report errors.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from windlass.cli.verb_table import keep_together
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
_SPELLED = {
    **dict.fromkeys(("engine", "name", "framework", "context", "namespace", "runtime"), "NAME"),
    **dict.fromkeys(("service_account", "mesh_name", "priority_class", "queue"), "NAME"),
    **dict.fromkeys(("gpu_resource", "pull_secrets"), "NAME"),
    **dict.fromkeys(("gpu_label", "pack"), "LABEL"),
    "image": "NAME:TAG",
    "python": "PATH",
    "gpu_type": "TYPE",
    "rdzv_endpoint": "HOST:PORT",
    "tolerations": "TAINT",
    "secrets": "SECRET",
    "volumes": "VOLUME",
}
_REPEATED = ("table", "many")
_PLACE = "windlass.place"
_PLACE_HELP = {
    "engine": "Engine to use (default: from the settings)",
    "namespace": "Namespace to use (default: the namespace of the context)",
    "context": "Kubeconfig context (default: the current context)",
}


class SettingOption(click.Option):
    """Flag of a setting, with its heading in `--help-all`."""

    def __init__(self, *args: Any, group: str, is_common: bool, **options: Any) -> None:
        super().__init__(*args, **options)
        self.group = group
        self.is_common = is_common

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return the flag and its help text. A switch is shown as `--[no-]NAME`."""
        record = super().get_help_record(ctx)
        if record is None:
            return None
        flag, text = record
        return f"--[no-]{self.opts[0][2:]}" if self.secondary_opts else flag, text


def job_settings(*, with_export: bool = False) -> tuple[Setting, ...]:
    """Return the settings that are flags of a job."""
    return tuple(
        setting
        for setting in SETTINGS
        if setting.name not in _NOT_OF_A_JOB and (with_export or setting.group != EXPORT)
    )


def setting_options(function: F) -> F:
    """Add one option per setting. An option that was not given is None."""
    return _add_options(function, job_settings())


def export_options(function: F) -> F:
    """Add one option per setting, including those for exports only."""
    return _add_options(function, job_settings(with_export=True))


def _add_options(function: F, settings: tuple[Setting, ...]) -> F:
    for setting in reversed(settings):
        function = _make_option(setting)(function)
    return function


def _make_option(setting: Setting) -> Callable[[F], F]:
    placed: Any = {
        "cls": SettingOption,
        "group": setting.group,
        "is_common": setting.common,
        "default": None,
    }
    if setting.kind == "bool":
        names = [f"{setting.flag}/--no-{setting.flag[2:]}", setting.name]
        return click.option(*names, help=_render_help(setting), **placed)
    names = [setting.flag, setting.name]
    if setting.name in _SHORT:
        names.insert(0, _SHORT[setting.name])
    is_repeated = setting.kind in _REPEATED
    metavar = "|".join(setting.choices) or _SPELLED.get(setting.name) or _METAVARS[setting.kind]
    return click.option(
        *names,
        multiple=is_repeated,
        metavar=metavar,
        help=f"{_render_help(setting)}{' (repeatable)' if is_repeated else ''}",
        **placed,
    )


def _render_help(setting: Setting) -> str:
    text = setting.description[:1].upper() + setting.description[1:]
    default = setting.default_text
    if " " not in default:
        text = text.removesuffix(f"{default})") + f"{keep_together(default)})" if default else text
    return text.replace("(default: ", keep_together("(default: "))


def given_flags(options: dict[str, Any]) -> dict[str, Any]:
    """Return the settings among a command's options, in the form that `read_settings` takes."""
    known = {setting.name for setting in job_settings(with_export=True)}
    return {
        name: value if value is False else value or None
        for name, value in options.items()
        if name in known
    }


def load_settings() -> Settings:
    """Return the settings in effect here, including the flags that say where jobs are."""
    return read_settings_here(place_flags())


def place_flags() -> dict[str, str]:
    """Return the given flags among those that say where jobs are."""
    context = click.get_current_context(silent=True)
    return dict(context.meta.get(_PLACE, {})) if context is not None else {}


def _keep_place(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value:
        ctx.meta.setdefault(_PLACE, {})[param.name] = value


def place_options(function: F) -> F:
    """Add the flags that say where jobs are. `load_settings` applies them."""
    for setting in reversed([s for s in SETTINGS if s.name in ("engine", "namespace", "context")]):
        function = click.option(
            *([_SHORT[setting.name]] if setting.name in _SHORT else []),
            setting.flag,
            setting.name,
            metavar=_SPELLED[setting.name],
            help=_PLACE_HELP[setting.name],
            callback=_keep_place,
            expose_value=False,
            is_eager=True,
        )(function)
    return function


json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON to stdout")


def complete_jobs(
    _ctx: click.Context, _param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Return the IDs of known jobs. Errors are ignored, because completion must never fail."""
    from windlass.client.jobs.find_jobs import list_jobs

    with contextlib.suppress(WindlassError, OSError):
        return [
            CompletionItem(job.id, help=job.status().phase.value)
            for job in list_jobs(load_settings())
            if job.id.startswith(incomplete)
        ]
    return []


def job_argument(function: F) -> F:
    """Add an argument for one job, and the flags that say where it is."""
    argument = click.argument("job_text", metavar="JOB", shell_complete=complete_jobs)
    return argument(place_options(function))


def jobs_argument(*, required: bool) -> Callable[[F], F]:
    """Return a decorator that adds an argument for several jobs, and the flags that say where they are."""
    argument = click.argument(
        "job_texts", metavar="JOB...", nargs=-1, required=required, shell_complete=complete_jobs
    )
    return lambda function: argument(place_options(function))

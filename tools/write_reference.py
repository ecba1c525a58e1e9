"""Writer of docs/reference/ from docstrings, commands and the settings table. Run it with `make reference`.

It writes python.md, cli.md and settings.md. Their content depends only on the code, so a test compares them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
from public_names import (
    CLASSES,
    ERRORS,
    FUNCTIONS,
    IN_RANKS,
    IN_TRAINER,
    MADE_BY_OTHERS,
    find_members,
    read_doc,
)

import windlass
import windlass.distributed
from windlass.cli.prepare import TargetCommand
from windlass.cli.verb_table import cli
from windlass.settings import SETTINGS, Setting

FOLDER = Path(__file__).parents[1] / "docs/reference"
_NOTE = "<!-- Written by `make reference`: change the docstrings, commands or settings instead. -->"
_EXPLAINED = re.compile(r"^(\w+(?:, \w+)*): (.*)")
_TOO_LONG = 100


def render_pages() -> dict[str, str]:
    """Return every page by its name."""
    pages = {"python.md": _python(), "cli.md": _cli(), "settings.md": _settings()}
    return {name: "\n\n".join([_NOTE, *parts]) + "\n" for name, parts in pages.items()}


def _lines(*lines: str) -> str:
    return "\n".join(lines)


# -- Python ------------------------------------------------------------------------------------


def _python() -> Iterator[str]:
    yield "# Python"
    yield _lines(
        "Look up every public function, class and keyword of `import windlass as wl`. Settings that you",
        "omit come from the environment or a file, or else from their [defaults](settings.md).",
    )
    yield "## Functions"
    for name in FUNCTIONS:
        yield _render_function("###", f"wl.{name}", getattr(windlass, name))
    yield "## Classes"
    for name, kind in CLASSES.items():
        module = "windlass.trainer" if name in IN_TRAINER else "wl"
        title = name if name in MADE_BY_OTHERS and name != "images" else f"{module}.{name}"
        yield f"### {title}"
        if name not in MADE_BY_OTHERS:
            yield _render_signature(title, kind)
        yield _render_doc(read_doc(kind))
        for member_name, member in find_members(name):
            if isinstance(member, property):
                yield f"#### .{member_name}"
                yield _render_doc(inspect.getdoc(member) or "")
            else:
                yield _render_function("####", f".{member_name}".replace(".__call__", ""), member)
    yield "## Inside ranks"
    yield "`import windlass.distributed`; `wl.report` is there too."
    for name in IN_RANKS:
        function = getattr(windlass.distributed, name)
        yield _render_function("###", f"windlass.distributed.{name}", function)
    yield "## Errors"
    yield "Each has a `message`, and a `hint` with the next action."
    yield "\n".join(["| error | is a | when |", "|---|---|---|", *map(_render_error, ERRORS)])


def _render_function(level: str, name: str, function: Callable[..., Any]) -> str:
    title = f"{level} {name or 'calling it'}"
    return "\n\n".join([title, _render_signature(name, function), _render_doc(read_doc(function))])


def _render_signature(name: str, function: Callable[..., Any]) -> str:
    signature = inspect.signature(function)
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    signature = signature.replace(
        parameters=parameters,
        return_annotation=inspect.Signature.empty
        if isinstance(function, type)
        else signature.return_annotation,
    )
    text = name + _unquote(str(signature))
    if len(text) > _TOO_LONG:
        parts = _unquote_parts(signature)
        text = "\n".join([f"{name}(", *(f"    {part}," for part in parts), _end(signature)])
    return f"```py\n{text}\n```"


def _unquote_parts(signature: inspect.Signature) -> list[str]:
    parts: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(_unquote(str(parameter)))
        if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            parts.append("/")
    return parts


def _end(signature: inspect.Signature) -> str:
    returned = signature.return_annotation
    return ")" if returned is inspect.Signature.empty else f") -> {returned}"


def _unquote(text: str) -> str:
    """Return annotations without the quotes that Python puts around unevaluated ones."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _render_doc(doc: str) -> str:
    """Return a docstring, with its explained parameters as a list."""
    lines: list[str] = []
    for line in doc.splitlines():
        if match := _EXPLAINED.match(line):
            if lines and lines[-1] and not lines[-1].startswith("- "):
                lines.append("")
            names = ", ".join(f"`{name}`" for name in match[1].split(", "))
            line = f"- {names}: {match[2]}"
        lines.append(line)
    return "\n".join(lines)


def _render_error(name: str) -> str:
    kind = getattr(windlass, name)
    return f"| `{name}` | `{kind.__base__.__name__}` | {inspect.getdoc(kind)} |"


# -- the command line --------------------------------------------------------------------------


def _cli() -> Iterator[str]:
    yield "# Command line"
    yield _lines(
        "Look up every command, flag and exit code of `windlass`. For `run` and `export`, this page shows",
        "`--help-all`. Data goes to stdout and messages to stderr. `--json` prints data for programs.",
    )
    yield _lines(
        "| exit code | meaning |",
        "|---|---|",
        "| 0 | success |",
        "| 1 | the job failed |",
        "| 2 | wrong usage |",
        "| 3 | an error of the engine or the cluster |",
        "| 130 | interrupted |",
    )
    yield from _render_group(cli, click.Context(cli, info_name="windlass", **_WIDE))


_WIDE: dict[str, Any] = {**cli.context_settings, "terminal_width": 100}


def _render_group(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if command is None:
            continue
        own = click.Context(command, info_name=name, parent=context, **_WIDE)
        yield f"## {own.command_path}"
        shown = (
            command.get_help_all(own)
            if isinstance(command, TargetCommand)
            else command.get_help(own)
        )
        yield f"```text\n{shown}\n```"
        if isinstance(command, click.Group):
            yield from _render_group(command, own)


# -- settings ----------------------------------------------------------------------------------


def _settings() -> Iterator[str]:
    yield "# Settings"
    yield _lines(
        "Look up the name, default and meaning of each setting. You can set each one as a flag of",
        "`windlass run`, a keyword of `wl.run` and `wl.submit`, an environment variable, or a key in",
        "`windlass.toml` or in `[tool.windlass]` of `pyproject.toml`. Flags and keywords take precedence",
        "over variables, then come the project's file and `~/.config/windlass/config.toml`.",
        "`windlass config` shows the values in effect and their sources.",
    )
    groups: dict[str, list[Setting]] = {}
    for setting in SETTINGS:
        groups.setdefault(setting.group or "Jobs", []).append(setting)
    for title, members in groups.items():
        yield f"## {title}"
        head = ["| setting | flag | variable | default | meaning |", "|---|---|---|---|---|"]
        yield "\n".join([*head, *map(_render_setting, members)])


def _render_setting(setting: Setting) -> str:
    flag = "" if setting.name == "home" else f"`{setting.flag}`"
    variable = f"`{setting.variable}`" if setting.variable else ""
    choices = f" ({', '.join(setting.choices)})" if setting.choices else ""
    meaning = f"{setting.help}{choices}".replace("|", "\\|")
    return f"| `{setting.name}` | {flag} | {variable} | {_default(setting)} | {meaning} |"


def _default(setting: Setting) -> str:
    default = setting.default_text
    is_value = not setting.unset or callable(setting.default)
    return f"`{default}`" if default and is_value else default


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, text in render_pages().items():
        (FOLDER / page).write_text(text)

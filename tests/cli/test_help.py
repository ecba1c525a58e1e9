"""Help texts: the flags, headings and words of `--help` and `--help-all`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import click
import pytest
from cli.process import Ran

from windlass.cli.flags import job_settings
from windlass.cli.prepare import TargetCommand
from windlass.cli.verb_table import cli
from windlass.settings import Setting
from windlass.settings.table import EXPORT

Cli = Callable[..., Ran]

FLAG = re.compile(r"^  (?:-\w, )?(--[\w\[\]-]+)", re.MULTILINE)
WITH_TARGET = ("run", "export")
OWN = {
    "run": {"--detach", "--dry-run", "--quiet"},
    "export": {"--plain", "--operator", "--split", "--with-keys"},
}
SHARED = {"--json", "--help", "--help-all"}


def _find_settings(verb: str) -> tuple[Setting, ...]:
    return job_settings(with_export=verb == "export")


def _find_flags(text: str) -> set[str]:
    return {flag.replace("[no-]", "") for flag in FLAG.findall(text)}


def _read_sections(text: str) -> dict[str, str]:
    """Return the text under each heading."""
    parts = re.split(r"^(\S.*):\n(?=  -)", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def _join(text: str) -> str:
    return " ".join(text.split())


def _list_commands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    yield command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            assert found is not None
            yield from _list_commands(found, click.Context(found, info_name=name, parent=context))


ALL = list(_list_commands(cli, click.Context(cli, info_name="windlass", **cli.context_settings)))
PATHS = [context.command_path for _, context in ALL]


@pytest.mark.parametrize("verb", WITH_TARGET)
def test_help_shows_the_common_flags_and_no_others(windlass: Cli, verb: str) -> None:
    shown = windlass(verb, "--help").out
    common = {setting.flag for setting in _find_settings(verb) if setting.common}
    assert 8 <= len(common) <= 14
    assert _find_flags(shown) == common | OWN[verb] | SHARED
    assert list(_read_sections(shown)) == ["Options"]


@pytest.mark.parametrize("verb", WITH_TARGET)
def test_help_names_the_number_of_all_flags(windlass: Cli, verb: str) -> None:
    count = len(_find_flags(windlass(verb, "--help-all").out))
    last = windlass(verb, "--help").out.splitlines()[-1]
    assert last == f"Run `windlass {verb} --help-all` for all {count} flags."


@pytest.mark.parametrize("verb", WITH_TARGET)
def test_help_all_shows_each_flag_under_its_group(windlass: Cli, verb: str) -> None:
    sections = _read_sections(windlass(verb, "--help-all").out)
    found = {heading: _find_flags(text) for heading, text in sections.items()}
    expected = {"Options": OWN[verb] | SHARED}
    for setting in _find_settings(verb):
        expected.setdefault(setting.group, set()).add(setting.flag)
    assert found == expected
    assert (EXPORT in found) == (verb == "export")


@pytest.mark.parametrize("verb", WITH_TARGET)
@pytest.mark.parametrize("width", ["80", "100"])
def test_help_all_shows_every_default(windlass: Cli, verb: str, width: str) -> None:
    raw = windlass(verb, "--help-all", env={"COLUMNS": width}).out
    shown = _join(raw)
    for setting in _find_settings(verb):
        text = setting.description[:1].upper() + setting.description[1:]
        assert text in shown
        assert not setting.default_text or f"(default: {setting.default_text})" in text
    assert "(default:\n" not in raw
    assert raw.isascii()


def test_zero_is_a_default_that_is_shown() -> None:
    by_name = {setting.name: setting for setting in _find_settings("run")}
    assert by_name["gpus"].description.endswith("(default: 0)")
    assert by_name["grace_s"].description.endswith("(default: 10s)")
    assert by_name["ttl_s"].description.endswith("(default: 1d)")
    assert by_name["in_image"].default_text == ""


def test_help_all_is_that_of_windlass_for_a_function_too(windlass: Cli) -> None:
    ran = windlass("run", "work.py::add", "--help-all")
    assert ran.code == 0
    assert ran.out == windlass("run", "--help-all").out


def test_the_help_of_a_function_names_the_flags_of_windlass(windlass: Cli) -> None:
    shown = windlass("export", "work.py::add", "--help").out
    assert "windlass export --help-all" in shown
    listed = shown.partition("--help-all`):")[2].replace(",", " ").split()
    flags = {setting.flag for setting in _find_settings("export")}
    assert set(listed) == flags | OWN["export"] | {"--json"}


def test_completion_offers_all_flags(windlass: Cli) -> None:
    variables = {
        "_WINDLASS_COMPLETE": "bash_complete",
        "COMP_WORDS": "windlass run --",
        "COMP_CWORD": "2",
    }
    offered = {line.partition(",")[2] for line in windlass(env=variables).out.splitlines()}
    assert offered >= {setting.flag for setting in _find_settings("run")} | OWN["run"] | SHARED


@pytest.mark.parametrize(("command", "context"), ALL, ids=PATHS)
def test_texts_read_well(command: click.Command, context: click.Context) -> None:
    shown = command.get_help_all(context) if isinstance(command, TargetCommand) else ""
    for text in (command.get_help(context), shown, *_find_texts(command, context)):
        assert not re.search(r"\b(?:none|empty|unset):", text, re.IGNORECASE)
        assert not re.search(r"\bdefaults? (?:is|to)\b", text)
    for text in _find_texts(command, context):
        assert text[:1].isupper()
        assert not text.endswith(".")


def _find_texts(command: click.Command, context: click.Context) -> list[str]:
    params = command.get_params(context)
    return [param.help or "" for param in params if isinstance(param, click.Option)]

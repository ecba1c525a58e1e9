"""Keywords of the public functions. One table defines them for signatures, help() and type checkers."""

from __future__ import annotations

import inspect
import pydoc
import subprocess
import sys
import typing
from dataclasses import fields
from pathlib import Path

import pytest
import write_api

import windlass as wl
from windlass.client import keywords
from windlass.client.compute.calls.callable_work import Options
from windlass.client.compute.calls.remote import Remote
from windlass.settings import SETTINGS

TYPED = Path(__file__).with_name("typed")


def test_type_hints_match_the_tables():
    assert write_api.PATH.read_text() == write_api.render(), "run `make api`"


@pytest.mark.parametrize("function", [wl.run, wl.submit])
def test_job_accepts_every_setting(function):
    shown = inspect.signature(function).parameters
    for setting in SETTINGS:
        assert shown[setting.name].kind is inspect.Parameter.KEYWORD_ONLY
        if not callable(setting.default):
            assert shown[setting.name].default == setting.default
    assert not _takes_anything(function)


@pytest.mark.parametrize(
    ("function", "tables"),
    [
        (wl.run, [keywords.JOB]),
        (wl.submit, [keywords.JOB]),
        (wl.Compute, [keywords.COMPUTE, keywords.COMPUTE_MORE]),
        (wl.compute, [keywords.COMPUTE, keywords.COMPUTE_MORE]),
        (wl.app, [keywords.APP]),
        (wl.fn, [keywords.CALL]),
        (wl.cls, [keywords.CALL]),
        (Remote.options, [keywords.CALL]),
        (wl.distribute, [keywords.DISTRIBUTE]),
        (wl.Compute.distribute, [keywords.DISTRIBUTE]),
        (Remote.distribute, [keywords.DISTRIBUTE]),
    ],
    ids=lambda given: getattr(given, "__qualname__", None),
)
def test_signatures_and_help_show_each_keyword(function, tables):
    shown = inspect.signature(function).parameters
    text = pydoc.render_doc(function, renderer=pydoc.plaintext)
    for keyword in [keyword for table in tables for keyword in table]:
        assert keyword.name in shown
        assert f" {keyword.name}: " in text.partition("\n\n")[2].replace("\n", " ")
    assert not _takes_anything(function)


def _takes_anything(function: object) -> list[str]:
    parameters = inspect.signature(function).parameters.values()
    return [one.name for one in parameters if one.kind is inspect.Parameter.VAR_KEYWORD]


def test_options_of_a_call_match_its_keywords():
    assert [one.name for one in keywords.CALL] == [field.name for field in fields(Options)]
    defaults = {field.name: field.default for field in fields(Options)}
    assert {one.name: one.default for one in keywords.CALL} == defaults


def test_type_checker_accepts_correct_code():
    checked = _check("right.py")
    assert checked.returncode == 0, checked.stdout


def test_a_type_checker_refuses_each_mistake():
    wrong = (TYPED / "wrong.py").read_text().splitlines()
    expected = {number for number, line in enumerate(wrong, 1) if "  # wrong" in line}
    checked = _check("wrong.py")
    refused = {
        int(line.split(":")[1]) for line in checked.stdout.splitlines() if ": error:" in line
    }
    assert refused == expected, checked.stdout


def _check(name: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", name]
    return subprocess.run(command, capture_output=True, text=True, cwd=TYPED, check=False)


def _list_public():
    """Yield every function and method that users may call, by name."""
    for name in wl.__all__:
        public = getattr(wl, name)
        if inspect.isfunction(public):
            yield pytest.param(public, id=name)
        for own, member in vars(public).items() if inspect.isclass(public) else ():
            is_theirs = not own.startswith("_") or own == "__init__"
            # internal, for clusters
            if inspect.isfunction(member) and is_theirs and own != "ensure":
                yield pytest.param(member, id=f"{name}.{own}")


@pytest.mark.parametrize("function", [*_list_public(), Remote.options, Remote.distribute])
def test_parameter_types_can_be_inspected(function):
    hints = typing.get_type_hints(function)
    shown = inspect.signature(function).parameters
    assert "return" in hints
    others = hints.keys() - shown.keys() - {"return"}  # the mapping of keywords, which is hidden
    assert [hints[name] for name in others] in ([], [typing.Any])

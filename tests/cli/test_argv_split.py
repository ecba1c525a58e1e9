"""Assignment of the arguments of `windlass run` to Windlass, the target and the work."""

from __future__ import annotations

import click
import pytest

from windlass.cli.prepare import SplitWords, TargetCommand, sort_words
from windlass.cli.verb_table import cli
from windlass.cli.verbs.run import run

assert isinstance(run, TargetCommand)
OPTIONS = run.options(click.Context(run, info_name="run", **cli.context_settings))


@pytest.mark.parametrize(
    ("argv", "ours", "target", "rest"),
    [
        (["a.py"], (), ("a.py",), ()),
        (["--nodes", "2", "a.py"], ("--nodes=2",), ("a.py",), ()),
        (["a.py", "--nodes=2", "--lr", "1"], ("--nodes=2",), ("a.py",), ("--lr", "1")),
        (["a.py", "-e", "local", "x"], ("--engine=local",), ("a.py",), ("x",)),
        (["a.py", "--quiet", "--", "--quiet"], ("--quiet",), ("a.py",), ("--quiet",)),
        (["a.py", "--", "--", "x"], (), ("a.py",), ("--", "x")),
        (["--", "a.py", "--nodes", "2"], (), ("a.py",), ("--nodes", "2")),
        (["-m", "pkg.mod", "--x"], (), ("-m", "pkg.mod"), ("--x",)),
        (["--procs", "2", "--", "-m", "pkg", "x"], ("--procs=2",), ("-m", "pkg"), ("x",)),
        (["python", "-m", "pkg"], (), ("python",), ("-m", "pkg")),
        (["bash", "-c", "echo $x"], (), ("bash",), ("-c", "echo $x")),
        (["a.py", "--env", "--nodes"], ("--env=--nodes",), ("a.py",), ()),
        (["a.py", "--name", "", "a=b"], ("--name=",), ("a.py",), ("a=b",)),
        (["a.py", "-", "-3", "--nodesx=1"], (), ("a.py",), ("-", "-3", "--nodesx=1")),
        ([], (), (), ()),
        (["--"], (), (), ()),
    ],
)
def test_assignment(
    argv: list[str], ours: tuple[str, ...], target: tuple[str, ...], rest: tuple[str, ...]
) -> None:
    words = sort_words(OPTIONS, argv)
    assert (words.ours, words.target, words.rest) == (ours, target, rest)


def test_an_unknown_flag_before_the_target_is_refused() -> None:
    with pytest.raises(click.NoSuchOption):
        sort_words(OPTIONS, ["--nodse", "2", "a.py"])


def test_a_flag_without_its_value_is_refused() -> None:
    with pytest.raises(click.BadOptionUsage, match="--nodes needs a value"):
        sort_words(OPTIONS, ["a.py", "--nodes"])


def test_near_misses_are_noticed_only_before_the_dashes() -> None:
    words = sort_words(OPTIONS, ["a.py", "--nnodes=2", "--lr", "1", "--", "--proc"])
    assert words.near == {"--nnodes": "--nodes"}


def test_recognizing_a_function() -> None:
    assert SplitWords(target=("a.py::f",)).is_function
    assert not SplitWords(target=("-m", "a::f")).is_function
    assert not SplitWords(target=("a.py",)).is_function

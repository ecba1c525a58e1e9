"""Targets: every way to name work, and hints for every mistake."""

from __future__ import annotations

import functools
import os
import pickle
import sys
import threading
from pathlib import Path

import pytest
import rank_work

from windlass.client.jobs.target import find_script, function_name, import_paths, read_work_target
from windlass.errors import BundleError, SpecError
from windlass.spec.work import Command, Function, Module, Script


@pytest.fixture
def project(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text("def main(): pass\n")
    (tmp_path / "evaluate.py").touch()
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "deep.py").touch()
    (tmp_path / "run me").write_text("#!/bin/sh\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


class Trainer:
    def fit(self, lr):
        return lr


def test_function_is_sent_with_its_arguments(project):
    target = read_work_target(rank_work.echo, (1, "a"), {"b": 2}, cwd=project)
    assert target.work == Function(name="echo")
    function, args, kwargs = pickle.loads(target.payload)
    assert (function, args, kwargs) == (rank_work.echo, (1, "a"), {"b": 2})
    assert target.source == Path(rank_work.__file__)


def a_function():
    pass


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (a_function, "a_function"),
        (functools.partial(Trainer().fit, 1), "Trainer.fit"),
        (Trainer, "Trainer"),
        (functools.partial(a_function), "a_function"),
        (functools.partial(functools.partial(Trainer().fit, 1)), "Trainer.fit"),
        (lambda: None, "<lambda>"),
        (functools.partial(len, ()), "len"),
    ],
)
def test_callables_have_names(function, name, project):
    assert function_name(function) == name
    assert read_work_target(function, cwd=project).work == Function(name=name)


def test_impossible_call_is_refused_before_anything_starts(project):
    def train(lr, *, steps):
        return lr, steps

    with pytest.raises(
        SpecError, match="train cannot be called: missing a required argument: 'lr'"
    ):
        read_work_target(train, kwargs={"steps": 1}, cwd=project)
    with pytest.raises(SpecError, match="got an unexpected keyword argument 'nope'"):
        read_work_target(train, args=(1,), kwargs={"steps": 1, "nope": 2}, cwd=project)


def test_a_callable_object(project):
    class Callable:
        def __call__(self):
            return 5

    target = read_work_target(Callable(), cwd=project)
    assert target.work.name.endswith("Callable")
    assert pickle.loads(target.payload)[0]() == 5


@pytest.mark.parametrize(
    ("given", "args", "work"),
    [
        ("train.py", (), Script(path="train.py")),
        (Path("train.py"), ("--lr", 1), Script(path="train.py", args=("--lr", "1"))),
        ("sub/deep.py", (), Script(path="sub/deep.py")),
        (["train.py", "-x"], ["y"], Script(path="train.py", args=("-x", "y"))),
        ("-m pkg.mod", ("a b",), Module(name="pkg.mod", args=("a b",))),
        (["-m", "pkg.mod", "x"], (), Module(name="pkg.mod", args=("x",))),
        (["sh", "-c", "echo $RANK"], (), Command(argv=("sh", "-c", "echo $RANK"))),
        ("sh", ("-c", "true"), Command(argv=("sh", "-c", "true"))),
        (("sh", 3), (), Command(argv=("sh", "3"))),
        ("run me", (), Command(argv=("./run me",))),
    ],
    ids=str,
)
def test_words(project, given, args, work):
    assert read_work_target(given, args, cwd=project).work == work


def test_a_function_of_a_file(project):
    target = read_work_target("train.py::main", (1,), {"x": 2}, cwd=project)
    assert target.work == Function(name="main", file=str(project / "train.py"))
    assert pickle.loads(target.payload) == (None, (1,), {"x": 2})
    assert target.source == project / "train.py"


def test_paths_are_relative_to_the_given_folder(project, monkeypatch):
    monkeypatch.chdir("/")
    assert read_work_target("train.py", cwd=project).source == project / "train.py"
    assert find_script(str(project / "sub" / "deep.py"), Path("/")) == project / "sub" / "deep.py"
    monkeypatch.setenv("HOME", str(project))
    assert find_script("~/train.py", Path("/")) == project / "train.py"


@pytest.mark.parametrize(
    ("given", "kwargs", "says", "hint"),
    [
        ("", {}, "nothing to run", "windlass run train.py"),
        ([], {}, "nothing to run", "windlass run train.py"),
        ([], {"a": 1}, "nothing to run", "windlass run train.py"),
        ([""], {}, "nothing to run", "windlass run train.py"),
        ("trian.py", {}, "script not found: trian.py", "did you mean train.py?"),
        ("sub/deeep.py", {}, "script not found: sub/deeep.py", "did you mean sub/deep.py?"),
        ("zzzzzz.py", {}, "script not found: zzzzzz.py", "evaluate.py, train.py"),
        ("nowhere/x.py", {}, "script not found: nowhere/x.py", "has no scripts"),
        ("sub", {}, "sub is a folder", "windlass run sub/train.py"),
        ("trian.py::main", {}, "script not found: trian.py", "did you mean train.py?"),
        ("train.py::", {}, "invalid function name ''", "FILE.py::FUNCTION"),
        ("train.py::a b", {}, "invalid function name 'a b'", "FILE.py::FUNCTION"),
        ("train.py::a::b", {}, "invalid function name 'a::b'", "FILE.py::FUNCTION"),
        ("::main", {}, "no file given before ::main", "FILE.py::FUNCTION"),
        ("-m", {}, "-m requires the name of a module", "windlass run -m package.module"),
        (["-m"], {}, "-m requires the name of a module", "windlass run -m package.module"),
        (
            "no-such-command",
            {},
            "no script or command named 'no-such-command'",
            "scripts in",
        ),
        ("train", {}, "no script or command named 'train'", "did you mean train.py?"),
        (
            "train.py",
            {"lr": 1},
            "keyword arguments can be passed only to functions, not to train.py",
            "args=[...]",
        ),
        (
            ["sh", "-c", "true"],
            {"x": 1},
            "keyword arguments can be passed only to functions, not to sh",
            "args=[...]",
        ),
        (None, {}, "cannot run None", "a function, a script"),
        (5, {}, "cannot run 5", "a function, a script"),
        (b"train.py", {}, "cannot run b'train.py'", "a function, a script"),
    ],
    ids=str,
)
def test_mistakes(project, given, kwargs, says, hint):
    with pytest.raises(SpecError) as caught:
        read_work_target(given, (), kwargs, cwd=project)
    assert says in caught.value.message
    assert hint in caught.value.hint


def test_unreadable_script(project):
    (project / "train.py").chmod(0)
    if os.access(project / "train.py", os.R_OK):
        pytest.skip("root reads everything")
    with pytest.raises(SpecError, match=r"cannot read train.py") as caught:
        read_work_target("train.py", cwd=project)
    assert caught.value.hint == "run `chmod u+r train.py`"


def train(value, *more):
    return value, more


def test_unpicklable_arguments_are_refused_by_name(project):
    with pytest.raises(BundleError, match=r"echo.*a lock cannot be pickled"):
        read_work_target(rank_work.echo, (threading.Lock(),), cwd=project)
    with pytest.raises(
        BundleError, match=r"^train: value\['state'\]\[1\]: a lock cannot be pickled"
    ):
        read_work_target(train, args=({"state": [1, threading.Lock()]},), cwd=project)
    with pytest.raises(BundleError, match=r"^train: more\[0\]\['x'\]: a lock cannot be pickled"):
        read_work_target(train, args=(1, {"x": threading.Lock()}), cwd=project)
    with pytest.raises(BundleError, match=r"arguments.*\['x'\]: a lock cannot be pickled"):
        read_work_target("train.py::main", kwargs={"x": threading.Lock()}, cwd=project)


def test_import_paths_exclude_those_of_the_interpreter(tmp_path, monkeypatch):
    (tmp_path / "file.zip").touch()
    own = Path(os.__file__).parent
    monkeypatch.setattr(
        sys, "path", ["", str(tmp_path), str(own), str(tmp_path / "none"), str(tmp_path)]
    )
    monkeypatch.chdir("/")
    assert import_paths() == ("/", str(tmp_path))


def test_project_below_the_interpreters_prefix_is_kept(tmp_path, monkeypatch):
    """An example is /usr/src/app with the system's Python in /usr."""
    for folder in (
        "src/app",
        "lib/python3.11/site-packages",
        "lib/python3/dist-packages",
        "local/lib/python3.11/dist-packages",
    ):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path.parent / f"{tmp_path.name}-project").mkdir()
    for name in ("prefix", "base_prefix", "exec_prefix"):
        monkeypatch.setattr(sys, name, str(tmp_path))
    mine = [str(tmp_path / "src/app"), f"{tmp_path}-project"]
    theirs = [str(path) for path in tmp_path.glob("**/*-packages")]
    assert len(theirs) == 3
    monkeypatch.setattr(sys, "path", [*mine, *theirs])
    assert import_paths() == tuple(mine)

"""Targets in the image. The client does not look for them, and refuses impossible ones."""

from __future__ import annotations

import pickle

import pytest

from windlass.client.jobs.target import read_in_image
from windlass.errors import SpecError
from windlass.spec.work import Command, Function, Module, Script


@pytest.mark.parametrize(
    ("target", "args", "work"),
    [
        ("/app/train.py", (), Script(path="/app/train.py")),
        (
            ["/app/train.py", "--lr", "1"],
            (2,),
            Script(path="/app/train.py", args=("--lr", "1", "2")),
        ),
        ("-m pkg.train", ("x",), Module(name="pkg.train", args=("x",))),
        (["-m", "pkg.train"], (), Module(name="pkg.train")),
        (["nvidia-smi", "-L"], (), Command(argv=("nvidia-smi", "-L"))),
        ("/app/train.py::main", (), Function(name="main", file="/app/train.py")),
    ],
    ids=str,
)
def test_meaning_of_a_target(target, args, work):
    assert read_in_image(target, args).work == work


def test_arguments_of_a_function_are_sent():
    found = read_in_image("/app/train.py::main", (1,), {"lr": 0.1})
    assert pickle.loads(found.payload) == (None, (1,), {"lr": 0.1})


@pytest.mark.parametrize(
    ("target", "kwargs", "says"),
    [
        (print, None, "not in the image"),
        ("", None, "nothing to run"),
        ([], None, "nothing to run"),
        ("-m ", None, "-m requires the name of a module"),
        ("/app/train.py::", None, "does not name a function"),
        ("::main", None, "does not name a function"),
        ("/app/train.py", {"lr": 1}, "keyword arguments can be passed only to functions"),
    ],
    ids=str,
)
def test_refused(target, kwargs, says):
    with pytest.raises(SpecError, match=says) as caught:
        read_in_image(target, (), kwargs)
    assert caught.value.hint

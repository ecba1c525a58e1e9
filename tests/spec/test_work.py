"""Work of four kinds. `kind` identifies each in JSON, and each has a label for users."""

from __future__ import annotations

import dataclasses

import pytest

from windlass import records
from windlass.errors import ProtocolError
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Command, Function, Module, Script


@pytest.mark.parametrize(
    ("work", "kind", "label"),
    [
        (Function(name="train"), "function", "train"),
        (Function(name="train", file="/p/a.py"), "function", "/p/a.py::train"),
        (Script(path="a.py", args=("--lr", "1")), "script", "a.py --lr 1"),
        (Module(name="pkg.mod", args=("x",)), "module", "-m pkg.mod x"),
        (Command(argv=("sh", "-c", "true")), "command", "sh -c true"),
    ],
    ids=str,
)
def test_kind_and_label(work, kind, label):
    data = records.to_json(JobSpec(work=work))
    assert data["work"]["kind"] == kind
    assert records.read(JobSpec, data).work == work
    assert work.label == label


def test_work_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Script(path="a.py").path = "b.py"


def test_an_unknown_kind_of_work_is_refused():
    with pytest.raises(ProtocolError, match="cannot read JobSpec"):
        records.read(JobSpec, {"work": {"kind": "spell", "name": "x"}})

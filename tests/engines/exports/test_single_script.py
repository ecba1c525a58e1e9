"""The single script of an export without Windlass: read unchanged, and refused if it imports other files."""

from __future__ import annotations

import pytest
from kube.plans import make_pod_plan

from windlass.engines.exports.plain_export import read_solo
from windlass.errors import SpecError
from windlass.spec.work import Command, Script


def read(tmp_path, text, **asked):
    (tmp_path / "train.py").write_text(text)
    return read_solo(make_pod_plan(**asked), tmp_path)


def test_script_without_local_imports(tmp_path):
    text = "import os, torch.nn\nfrom . import x\n# ä\n"
    assert read(tmp_path, text) == text


def test_code_in_the_image_is_not_read(tmp_path):
    plan = make_pod_plan(work=Script(path="/app/none.py"), in_image=True)
    assert read_solo(plan, tmp_path) is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import model", "train.py imports model from the same folder"),
        ("from model.layers import x", "train.py imports model"),
        ("def f():\n  import package.x", "train.py imports package"),
        ("import (", "train.py is not valid Python"),
        ("#" * 200_001, "has more than 200,000 bytes"),
    ],
)
def test_refused(tmp_path, text, says):
    (tmp_path / "model.py").write_text("")
    (tmp_path / "package").mkdir()
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert says in caught.value.message
    assert caught.value.hint


def test_other_work_must_be_in_the_image(tmp_path):
    with pytest.raises(SpecError, match="can only include a single script") as caught:
        read_solo(make_pod_plan(work=Command(argv=("ls",))), tmp_path)
    assert "--in-image" in caught.value.hint


def test_missing_script(tmp_path):
    with pytest.raises(SpecError, match="cannot read train"):
        read_solo(make_pod_plan(), tmp_path)

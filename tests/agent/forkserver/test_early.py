"""Variables set before torch is imported take effect as under `python`, for all kinds of work."""

from __future__ import annotations

import subprocess
import sys

import pytest

import windlass as wl

pytestmark = pytest.mark.long

SET = 'import os\nos.environ["TORCH_DISTRIBUTED_DEBUG"] = "DETAIL"\n'
LOOK = """
import torch, torch.distributed as dist
def look():
    return dist.get_debug_level().name
if __name__ == "__main__":
    print("level", look())
"""


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    (tmp_path / "pkg").mkdir()
    (tmp_path / "first.py").write_text(SET)
    (tmp_path / "direct.py").write_text(SET + LOOK)
    (tmp_path / "through.py").write_text("import first\n" + LOOK)
    (tmp_path / "late.py").write_text(LOOK + SET)
    (tmp_path / "pkg" / "__init__.py").write_text(SET)
    (tmp_path / "pkg" / "main.py").write_text(LOOK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG", raising=False)


def _windlass(*words):
    command = [sys.executable, "-m", "windlass.cli.main", "run", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(
    ("target", "where"),
    [
        (["direct.py"], "direct.py:2"),
        (["through.py"], "first.py:2"),
        (["-m", "pkg.main"], "__init__.py:2"),
    ],
)
def test_in_a_script_or_module(target, where):
    ran = _windlass(*target)
    assert ran.returncode == 0, ran.stderr
    assert "level DETAIL" in ran.stdout
    note = f"torch is not imported ahead: {where} sets TORCH_DISTRIBUTED_DEBUG before torch is"
    assert note in ran.stderr


def test_variable_set_after_the_import_has_no_effect():
    ran = _windlass("late.py", "--procs", "2")
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.count("level OFF") == 2
    assert "not imported ahead" not in ran.stderr


def test_in_a_function_s_file():
    assert wl.run("through.py::look", procs=2, quiet=True) == ["DETAIL", "DETAIL"]


def test_in_a_function_itself():
    def look():
        import os

        os.environ["TORCH_DISTRIBUTED_DEBUG"] = "INFO"
        import torch.distributed as dist

        return dist.get_debug_level().name

    assert wl.run(look, nodes=2, quiet=True) == ["INFO", "INFO"]


def test_explicit_preload_is_respected():
    assert wl.run("direct.py::look", preload=["torch"], quiet=True) == ["OFF"]

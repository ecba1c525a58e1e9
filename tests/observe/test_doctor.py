"""Checks of the local installation."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from windlass.engines.engine_table import engine_names
from windlass.observe.doctor import Check, check_all
from windlass.settings import read_settings


def _check(**flags: object) -> dict[str, Check]:
    settings = read_settings(flags=flags, environ=os.environ, start=Path.cwd())
    return {check.name: check for check in check_all(settings)}


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return an interpreter that cannot import torch."""
    path = tmp_path / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    path.chmod(0o755)
    return path


def test_everything_is_checked(python: Path, home: Path) -> None:
    found = _check(python=str(python))
    assert list(found) == [
        "windlass",
        "python",
        "torch here",
        "start",
        "home",
        "shared memory",
        "cpus",
        "gpus",
        "git",
        "open files",
        "engine local",
        "engine kubernetes",
        *(f"engine {name}" for name in engine_names()[2:]),
        "jobs",
        "ranks' python",
        "torch for ranks",
    ]
    assert sys.executable in found["python"].found
    assert "torch" not in sys.modules or found["torch here"].state == "ok"
    assert not home.exists(), "looking makes nothing"


def test_missing_torch_is_reported_but_not_fatal(python: Path) -> None:
    check = _check(python=str(python))["torch for ranks"]
    assert check.state == "missing"
    assert check.found == "ModuleNotFoundError: No module named 'torch'"
    assert f"{python} -m pip install torch" in check.hint
    assert not check.is_fatal


def test_missing_interpreter_is_fatal() -> None:
    found = _check(python="no-such-python")
    assert found["ranks' python"].is_fatal
    assert "torch for ranks" not in found


def test_an_old_interpreter_is_fatal(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\necho 3.9.18\nexit 1\n")
    old.chmod(0o755)
    check = _check(python=str(old))["ranks' python"]
    assert check.is_fatal
    assert "3.10" in check.hint


def test_home_that_cannot_be_created(tmp_path: Path, python: Path) -> None:
    (tmp_path / "file").write_text("")
    check = _check(home=str(tmp_path / "file" / "home"), python=str(python))["home"]
    assert check.is_fatal
    assert "WINDLASS_HOME" in check.hint


def test_an_engine_with_pods_needs_a_kubeconfig(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    found = _check(python=str(python))
    assert found["engine local"].state == "ok"
    check = found["engine kubernetes"]
    assert (check.state, check.is_fatal) == ("missing", False)
    assert "no kubeconfig found" in check.found

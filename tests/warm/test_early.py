"""Variables that a module sets before importing torch take effect even on nodes that preloaded torch."""

from __future__ import annotations

import importlib
import os

import pytest
import warm_tasks as tasks

import windlass as kt


@pytest.fixture
def early(monkeypatch):
    """Import the module without letting its variable leak into the environment of this process."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "")
    found = importlib.import_module("warm_early")
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG")
    return found


@pytest.mark.long
def test_early_variables_reach_every_kind_of_rank(warm, early, capfd):
    assert kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=2)(1) == [3, 3]
    look = kt.fn(early.read_level).to(warm)
    assert [look(), look()] == ["DETAIL", "DETAIL"]
    assert look.distribute("pytorch", workers=2)() == ["DETAIL", "DETAIL"]
    assert kt.fn(early.all_reduce).to(warm).distribute("pytorch", workers=2)() == [2, 2]
    assert kt.cls(early.Level).to(warm).read() == "DETAIL"
    assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ
    notes = [line for line in capfd.readouterr().err.splitlines() if "without torch" in line]
    assert (
        "read_level runs in separate interpreters, without torch preloaded: warm_early.py:7 "
        in notes[0]
    )


def test_deployed_function_gets_early_variables(warm, early):
    kt.fn(early.read_level, name="early-level").to(warm).deploy()
    assert kt.get("early-level")() == "DETAIL"

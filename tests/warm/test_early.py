"""A module that sets variables before it imports torch: they count, on nodes that have torch imported too."""

from __future__ import annotations

import importlib
import os

import pytest
import warm_tasks as tasks

import windlass as kt


@pytest.fixture
def early(monkeypatch):
    """The module, whose variable is the nodes' own business and not inherited from here."""
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "")
    found = importlib.import_module("warm_early")
    monkeypatch.delenv("TORCH_DISTRIBUTED_DEBUG")
    return found


@pytest.mark.long
def test_they_count_in_every_kind_of_rank(warm, early, capfd):
    assert kt.fn(tasks.all_reduce).to(warm).distribute("pytorch", workers=2)(1) == [3, 3]
    look = kt.fn(early.read_level).to(warm)
    assert [look(), look()] == ["DETAIL", "DETAIL"]
    assert look.distribute("pytorch", workers=2)() == ["DETAIL", "DETAIL"]
    assert kt.fn(early.all_reduce).to(warm).distribute("pytorch", workers=2)() == [2, 2]
    assert kt.cls(early.Level).to(warm).read() == "DETAIL"
    assert "TORCH_DISTRIBUTED_DEBUG" not in os.environ
    said = [line for line in capfd.readouterr().err.splitlines() if "without torch" in line]
    assert "read_level gets interpreters of its own, without torch: warm_early.py:7 " in said[0]


def test_one_that_was_deployed_is_called_alike(warm, early):
    kt.fn(early.read_level, name="early-level").to(warm).deploy()
    assert kt.get("early-level")() == "DETAIL"

"""Fixture for every case: a separate home, a clean environment, and a check for leftover processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from waits import find_leftovers, wait_for


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Provide a separate home, and check afterwards that no process of its jobs remains."""
    for name in list(os.environ):
        if name.startswith(("WINDLASS_", "TORCHELASTIC_")) or name == "NO_COLOR":
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("WINDLASS_HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield folder
    if (folder / "jobs").exists():
        wait_for(
            lambda: not find_leftovers(folder), f"no process left: {find_leftovers(folder)}", 15.0
        )

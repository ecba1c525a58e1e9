"""Parity tests share their launches, so they share one home per session."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from parity.launches import Launches
from waits import find_leftovers, wait_for


@pytest.fixture(scope="session", autouse=True)
def home(shared: Path) -> Iterator[Path]:
    """Yield a home for the session, and check that no process of its jobs is left afterwards."""
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("WINDLASS_", "TORCHELASTIC_")) or name == "NO_COLOR":
                patch.delenv(name)
        folder = shared / f"home-{os.getpid()}"
        patch.setenv("WINDLASS_HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(shared / "config"))
        yield folder
    wait_for(lambda: not find_leftovers(folder), f"no process left: {find_leftovers(folder)}", 15.0)


@pytest.fixture(scope="session")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder shared by all processes that run these tests in parallel."""
    root = tmp_path_factory.getbasetemp()
    root = root.parent if "PYTEST_XDIST_WORKER" in os.environ else root
    folder = root / "parity"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def launch(shared: Path) -> Launches:
    """Return the cache that runs a script in one of several ways, once."""
    return Launches(shared)

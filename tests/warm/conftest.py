"""Fixtures of the warm compute tests, which run once per engine, or only locally without a cluster.

Starting nodes takes seconds, so the tests of a module share one compute, `warm`. Tests that change or end
nodes `make` their own. Therefore the home belongs to the module too.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import SharedFolder, make_shared
from waits import find_leftovers, wait_for
from warm_computes import PROJECT, Client, Ground, Project

import windlass as kt

sys.path.insert(0, str(PROJECT))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on" not in metafunc.fixturenames:
        return
    engines: list[Any] = []
    if not metafunc.definition.get_closest_marker("cluster_only"):
        engines.append("local")
    if not metafunc.definition.get_closest_marker("local_only"):
        engines.append(pytest.param("kubernetes", marks=pytest.mark.cluster))
    metafunc.parametrize("on", engines, indirect=True, scope="module")


@pytest.fixture(scope="module", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Set a home for the module, and check afterwards that none of its computes is still running."""
    folder = tmp_path_factory.mktemp("warm") / "home"
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("WINDLASS_", "TORCHELASTIC_")) or name == "NO_COLOR":
                patch.delenv(name)
        patch.setenv("WINDLASS_HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder.parent / "config"))
        patch.chdir(PROJECT)
        yield folder
    wait_for(lambda: not find_leftovers(folder), f"no process left: {find_leftovers(folder)}", 15.0)


@pytest.fixture(scope="module")
def on(request: pytest.FixtureRequest, home: Path) -> Iterator[Ground]:
    space = request.getfixturevalue("space") if request.param == "kubernetes" else None
    ground = Ground(request.param, space)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ground.settings.items():
            patch.setenv(name, value)
        yield ground
        ground.clean()


@pytest.fixture(scope="module")
def warm(on: Ground) -> Iterator[kt.Compute]:
    """Yield a compute that the tests of a module share."""
    yield on.make()
    on.clean()


@pytest.fixture
def make(on: Ground) -> Iterator[Callable[..., kt.Compute]]:
    """Yield a function that makes computes for one test."""
    ground = Ground(on.engine, on.space)
    yield ground.make
    ground.clean()


@pytest.fixture
def shared(on: Ground, tmp_path: Path) -> SharedFolder:
    """Return a folder that both ranks and the test see."""
    return make_shared(on.space.files if on.space else None, tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Create a project for one test, and make it the working directory."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))

    def load(name: str) -> Any:
        importlib.invalidate_caches()
        return importlib.import_module(name)

    return Project(folder, load)


@pytest.fixture
def start_client(tmp_path: Path) -> Iterator[Callable[[kt.Compute, str], Client]]:
    """Yield a function that starts another process as a client of a compute. Kills them all at the end."""
    clients: list[Client] = []

    def start(compute: kt.Compute, code: str) -> Client:
        clients.append(Client(compute, code, tmp_path / "clients"))
        return clients[-1]

    yield start
    for client in clients:
        client.kill()

"""The tests of warm compute run once for every engine; without a cluster, once less.

Starting nodes takes seconds, so a module's tests share `warm`, one compute with nodes that stay, and only
those that change or end nodes `make` their own. So the home is the module's, too.
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
from waits import find_left_over, wait_for
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
    """A home of the module's own; afterwards nothing of its computes may be running."""
    folder = tmp_path_factory.mktemp("warm") / "home"
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("WINDLASS_", "TORCHELASTIC_")) or name == "NO_COLOR":
                patch.delenv(name)
        patch.setenv("WINDLASS_HOME", str(folder))
        patch.setenv("XDG_CONFIG_HOME", str(folder.parent / "config"))
        patch.chdir(PROJECT)
        yield folder
    wait_for(lambda: not find_left_over(folder), f"no process left: {find_left_over(folder)}", 15.0)


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
    """Nodes that the tests of a module share."""
    yield on.make()
    on.clean()


@pytest.fixture
def make(on: Ground) -> Iterator[Callable[..., kt.Compute]]:
    """Computes of a test's own."""
    ground = Ground(on.engine, on.space)
    yield ground.make
    ground.clean()


@pytest.fixture
def shared(on: Ground, tmp_path: Path) -> SharedFolder:
    """A folder that ranks and the test both see."""
    return make_shared(on.space.files if on.space else None, tmp_path)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A project of the test's own, which is also where it is called from."""
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
    """Other processes that use a compute; killed at the end."""
    clients: list[Client] = []

    def start(compute: kt.Compute, code: str) -> Client:
        clients.append(Client(compute, code, tmp_path / "clients"))
        return clients[-1]

    yield start
    for client in clients:
        client.kill()

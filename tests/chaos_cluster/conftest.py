"""One namespace for all of these tests, cleaned after each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos_cluster.ground import Ground, make_project, open_namespace
from chaos_cluster.testbed import Testbed, find_trouble, open_testbed

from windlass.engines.engine_table import load_dialect
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs
from windlass.kube.client.api import Api

# Read at import, because tests run without the WINDLASS_ variables of the caller.
TEST_IMAGE = os.environ.get("WINDLASS_TEST_IMAGE", "localhost/torch:2.13.0-cpu")


@pytest.fixture(scope="session")
def chaos_api() -> Iterator[Api]:
    with open_namespace(TEST_IMAGE) as api:
        yield api


@pytest.fixture
def ground(
    request: pytest.FixtureRequest,
    chaos_api: Api,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Ground]:
    """Use the engine `kubernetes`, or each engine that a test names."""
    dialect = load_dialect(getattr(request, "param", "kubernetes"))
    try:
        check_needs(chaos_api, dialect.needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)
    folder = make_project(tmp_path / "project")
    monkeypatch.chdir(folder)
    found = Ground(api=chaos_api, image=TEST_IMAGE, dialect=dialect, folder=folder)
    for name, value in found.environ.items():
        monkeypatch.setenv(name, value)
    yield found
    found.clean()


@pytest.fixture
def testbed(chaos_api: Api, ground: Ground) -> Iterator[Testbed]:
    """Open the testbed after `ground`, so the cluster is restored before the namespace is cleaned."""
    if trouble := find_trouble():
        pytest.skip(trouble)
    with open_testbed(chaos_api) as found:
        yield found

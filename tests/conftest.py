"""What every test needs: a home of its own, a clean environment, and proof that nothing is left running.

And what those on a cluster share: being skipped in one line where there is none, and a namespace.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from waits import find_left_over, wait_for

if TYPE_CHECKING:
    from cluster_space import Space

# Read at once: tests run without the WINDLASS_ variables of their surroundings.
TEST_IMAGE = os.environ.get("WINDLASS_TEST_IMAGE", "localhost/torch:2.13.0-cpu")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "chaos: takes nodes or the API server away from everybody, so it runs alone",
        "local_only(reason): a contract that cannot hold on a cluster",
        "cluster_only(reason): a contract that means nothing on one machine",
        "needs_can(capability): a contract about something that not every dialect can",
    ):
        config.addinivalue_line("markers", line)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A home of its own; afterwards nothing of its jobs may be running."""
    for name in list(os.environ):
        if name.startswith(("WINDLASS_", "TORCHELASTIC_")) or name == "NO_COLOR":
            monkeypatch.delenv(name)
    folder = tmp_path / "home"
    monkeypatch.setenv("WINDLASS_HOME", str(folder))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    yield folder
    if (folder / "jobs").exists():
        wait_for(
            lambda: not find_left_over(folder), f"no process left: {find_left_over(folder)}", 15.0
        )


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tests that need a cluster are skipped where there is none: all in one line, since all from one."""
    if item.get_closest_marker("cluster") and not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: make test-cluster runs these where KUBECONFIG names one")


@pytest.fixture(scope="session")
def space() -> Iterator[Space]:
    """A namespace for the cluster tests of this process, with a folder that its pods share."""
    from cluster_space import open_space

    with open_space("windlass-test", image=TEST_IMAGE) as found:
        yield found

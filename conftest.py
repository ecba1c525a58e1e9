"""Fixtures and hooks that all tests and the contract suite share: a home, a namespace and the engines.

The cases of the contract suite are part of the package (src/windlass/conformance/cases). Users run them on
one of their engines with `windlass conformance`. Here they run on every engine, including one of another
package.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import process_guard
import pytest
from clean_home import home
from contract_engines import choose_engines
from windlass_statefulset import STATEFUL_SET

if TYPE_CHECKING:
    from cluster_space import Space

__all__ = ["home"]

# Read during import, because tests run without the WINDLASS_ variables of their environment.
TEST_IMAGE = os.environ.get("WINDLASS_TEST_IMAGE", "localhost/torch:2.13.0-cpu")
CLUSTER_TIMEOUT_S = 420
ROOT = Path(__file__).parent
CASES = ROOT / "src/windlass/conformance/cases"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        process_guard.OPTION, action="store_true", help="skip each test that starts a process"
    )


def pytest_configure(config: pytest.Config) -> None:
    start_as_in_a_terminal()
    use_own_home(config)
    if config.getoption(process_guard.OPTION):
        process_guard.install(config)
    for line in (
        "chaos: stops nodes or the API server for all tests, so it runs alone",
        "local_only(reason): a contract that does not apply to clusters",
        "cluster_only(reason): a contract that does not apply to one machine",
    ):
        config.addinivalue_line("markers", line)


def use_own_home(config: pytest.Config) -> None:
    """Keep jobs of module fixtures out of the user's home. The fixture `home` serves only single tests."""
    if "WINDLASS_HOME" not in os.environ:  # xdist's workers inherit it
        folder = tempfile.mkdtemp(prefix="windlass-tests-")
        os.environ["WINDLASS_HOME"] = folder
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
        config.add_cleanup(lambda: os.environ.pop("WINDLASS_HOME", None))


def start_as_in_a_terminal() -> None:
    """Handle signals by default, and let child processes inherit only the standard descriptors.

    Programs that tests start inherit both. nohup, cron, CI runners and the `&` of scripts start programs with
    ignored or blocked signals. `make -j` and some runners leave pipes open.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for name in os.listdir("/dev/fd"):
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            os.set_inheritable(int(name), int(name) <= 2)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip tests that need a cluster if there is none.

    All skips come from one line, so pytest reports them together.
    """
    if item.get_closest_marker("cluster") and not os.environ.get("KUBECONFIG"):
        pytest.skip("needs a cluster: set KUBECONFIG and run make test-cluster")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Extend the timeout of tests on a cluster, because all test processes share its machines."""
    for item in items:
        if item.get_closest_marker("cluster") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(CLUSTER_TIMEOUT_S))


def pytest_collection_finish() -> None:
    """Exclude imported modules and collected tests from garbage collection. They are large and permanent."""
    gc.collect()
    gc.freeze()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if CASES in metafunc.definition.path.parents and "on" in metafunc.fixturenames:
        metafunc.parametrize("on", choose_engines(metafunc.definition), indirect=True)


@pytest.fixture(autouse=True)
def own_context() -> Iterator[None]:
    """Reset the training context and the handler of SIGTERM around each test.

    The context may have received a stop request. A remaining handler would end the process 30 s after any
    later test that sends SIGTERM.
    """
    before = signal.getsignal(signal.SIGTERM)
    forget_context()
    yield
    forget_context()
    signal.signal(signal.SIGTERM, before)


def forget_context() -> None:
    if (module := sys.modules.get("windlass.train.parallel.context")) is not None:
        vars(module)["_context"] = None


@pytest.fixture(scope="session")
def space() -> Iterator[Space]:
    """Provide a namespace for the cluster tests of this process, with a folder that its pods share."""
    from cluster_space import open_space

    with open_space("windlass-test", image=TEST_IMAGE) as opened:
        yield opened


@pytest.fixture(scope="session")
def plugin_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Provide a folder in which the package windlass-statefulset is installed."""
    from plugin_packages import PLUGINS, install

    folder = tmp_path_factory.mktemp("plugins") / "site"
    install(PLUGINS / "windlass-statefulset", folder)
    return folder


@pytest.fixture
def stateful_engine(plugin_folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Provide the engine of the package windlass-statefulset for this process and its children."""
    monkeypatch.syspath_prepend(plugin_folder)
    monkeypatch.setenv("PYTHONPATH", str(plugin_folder), prepend=os.pathsep)
    return "stateful"


@pytest.fixture(autouse=True)
def engine_of_the_case(request: pytest.FixtureRequest) -> None:
    """Install the package of the case's engine, if it has its own package."""
    callspec = getattr(request.node, "callspec", None)
    if callspec is not None and callspec.params.get("on") == STATEFUL_SET.name:
        request.getfixturevalue("stateful_engine")

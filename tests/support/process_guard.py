"""Tests that start no process, picked by what they do: `--no-processes` skips each test that starts one.

The test is stopped at its first start of a process, by an audit hook of the interpreter, so no list of tests
can be out of date. `make check` runs the suite in this way; `make test` runs everything.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import settings

OPTION = "--no-processes"
_STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
_REASON = "starts a process: make test runs it"
# what a test leaves open when it is stopped in the middle; a later test would be blamed for it
_IGNORED = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


def install(config: pytest.Config) -> None:
    """Skip each test that starts a process, and try fewer examples where Hypothesis chooses them."""
    settings.register_profile("check", max_examples=20)
    settings.load_profile("check")
    for line in _IGNORED:
        config.addinivalue_line("filterwarnings", line)
    config.pluginmanager.register(ProcessGuard())


class ProcessGuard:
    """Plug-in that ends a test as skipped when it starts a process, in whichever thread it does."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None  # the test that runs
        self._has_tripped = False
        sys.addaudithook(self._audit)

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if event in _STARTS and self._item is not None:
            self._has_tripped = True
            raise pytest.skip.Exception(_REASON)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self._item, self._has_tripped = item, False
        try:
            return (yield)
        finally:
            self._item = None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Any:
        """A test that caught the skip, or lost a thread to it, has failed for no other reason."""
        report = yield
        if self._has_tripped and report.outcome == "failed":
            report.outcome = "skipped"
            report.longrepr = (__file__, 0, f"Skipped: {_REASON}")
        elif self._has_tripped and report.outcome == "skipped":
            report.longrepr = (__file__, 0, f"Skipped: {_REASON}")
        return report

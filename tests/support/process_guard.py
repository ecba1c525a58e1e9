"""Pytest plug-in for `--no-processes`, which skips each test that starts a process.

An audit hook of the interpreter stops a test when it starts its first process, so there is no list of tests
to maintain. `make check` runs the suite this way. `make test` runs everything.
"""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import settings

OPTION = "--no-processes"
_STARTS = {"os.fork", "os.forkpty", "os.posix_spawn", "os.system", "subprocess.Popen"}
_REASON = "starts a process: make test runs it"
# An interrupted test leaves resources open. Without these, a later test would be blamed for them.
_IGNORED = (
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore::pytest.PytestUnhandledThreadExceptionWarning",
)


def install(config: pytest.Config) -> None:
    """Skip each test that starts a process, and lower the number of Hypothesis examples."""
    settings.register_profile("check", max_examples=20)
    settings.load_profile("check")
    for line in _IGNORED:
        config.addinivalue_line("filterwarnings", line)
    config.pluginmanager.register(ProcessGuard())


class ProcessGuard:
    """Plug-in that skips a test when any of its threads starts a process."""

    def __init__(self) -> None:
        self._item: pytest.Item | None = None  # the running test
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
        """Report a test as skipped if it failed because it caught the skip or lost a thread to it."""
        report = yield
        if self._has_tripped and report.outcome == "failed":
            report.outcome = "skipped"
            report.longrepr = (__file__, 0, f"Skipped: {_REASON}")
        elif self._has_tripped and report.outcome == "skipped":
            report.longrepr = (__file__, 0, f"Skipped: {_REASON}")
        return report

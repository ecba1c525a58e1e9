"""Pytest plugin for a user's cases: sets the engine and its location, selects cases and records results.

The conftest of the cases is independent of where they run.
"""

from __future__ import annotations

import contextlib
import importlib
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from windlass.conformance.case_result import FAILED, PASSED, SKIPPED, CaseResult
from windlass.conformance.cluster_place import ConformancePlace
from windlass.kube.client.api_errors import ClusterError

_FILES_S = 90.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseChoice:
    """Options of a run. Without a place, the cases run on this machine."""

    engine: str
    can: frozenset[str]  # capabilities of the engine
    place: ConformancePlace | None = None
    claim: str = ""
    runs_all: bool = False


CHOICE = pytest.StashKey[CaseChoice]()


@dataclass(slots=True, kw_only=True)
class CaseRecorder:
    """Pytest hooks that pass on the options, and report the result of each case."""

    choice: CaseChoice
    begin: Callable[[list[str]], None]
    report_result: Callable[[CaseResult], None]
    was_interrupted: bool = False
    collect_error: str = ""
    _phases: dict[str, list[pytest.TestReport]] = field(default_factory=dict)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.stash[CHOICE] = self.choice

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.collect_error = report.longreprtext

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.begin([name_case(item.nodeid, self.choice.engine) for item in session.items])

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        phases = self._phases.setdefault(report.nodeid, [])
        phases.append(report)
        if report.when == "teardown":
            self.report_result(make_result(name_case(report.nodeid, self.choice.engine), phases))

    def pytest_keyboard_interrupt(self) -> None:
        self.was_interrupted = True


def name_case(nodeid: str, engine: str) -> str:
    """Return a case's short name: `test_life::test_x[a]` for `test_life.py::test_x[local-a]` on `local`."""
    case = nodeid.replace(".py::", "::")
    for here, short in ((f"[{engine}]", ""), (f"[{engine}-", "["), (f"-{engine}]", "]")):
        case = case.replace(here, short)
    return case


def make_result(case: str, phases: list[pytest.TestReport]) -> CaseResult:
    """Return one row from pytest's reports of setup, call and teardown."""
    seconds = sum(report.duration for report in phases)
    for report in phases:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longreprtext
            reason = next(iter(text.strip().splitlines()), "")
            detail = report.longreprtext
            return CaseResult(
                case=case, result=FAILED, seconds=seconds, reason=reason, detail=detail
            )
        if report.skipped:
            text = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
            reason = text.removeprefix("Skipped: ")
            return CaseResult(case=case, result=SKIPPED, seconds=seconds, reason=reason)
    return CaseResult(case=case, result=PASSED, seconds=seconds)


# -- which cases run, and where ------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on" in metafunc.fixturenames:
        choice = metafunc.config.stash[CHOICE]
        reason = _find_obstacle(metafunc.definition, choice)
        marks = [pytest.mark.skip(reason=reason)] if reason else []
        metafunc.parametrize("on", [pytest.param(choice.engine, marks=marks)], indirect=True)


def _find_obstacle(case: pytest.Item, choice: CaseChoice) -> str:
    """Return why a case cannot run on the engine, or an empty string."""
    elsewhere = case.get_closest_marker("cluster_only" if choice.place is None else "local_only")
    if elsewhere:
        return str(elsewhere.args[0])
    wanted = {mark.args[0] for mark in case.iter_markers("needs_can")}
    lacks = sorted(wanted - choice.can)
    return f"the engine {choice.engine} does not support: {', '.join(lacks)}" if lacks else ""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.stash[CHOICE].runs_all:
        return
    chosen = [
        item
        for item in items
        if item.get_closest_marker("engine_matters") or item.get_closest_marker("quick")
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


# -- fixtures of the cases -----------------------------------------------------------------------


@pytest.fixture(scope="session")
def space(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Provide the user's namespace, with a folder that pods share if a case needs one and it can be made."""
    choice = request.config.stash[CHOICE]
    place = choice.place
    if place is None:
        raise AssertionError("this machine has no namespace")
    cluster_space = importlib.import_module("cluster_space")
    known = {"api": place.api, "image": place.image, "config": place.config, "label": place.label}
    if not any("shared" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield cluster_space.Space(**known)
        return
    name = f"windlass-conformance-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as stack:
        try:
            claim, files = stack.enter_context(
                cluster_space.open_files(
                    place.api, image=place.image, name=name, claim=choice.claim, timeout_s=_FILES_S
                )
            )
        except (cluster_space.NoSharedFolder, ClusterError) as error:
            reason = f"{error} (--shared-claim names a ReadWriteMany claim)"
            yield cluster_space.Space(**known, no_files=" ".join(reason.split()))
        else:
            yield cluster_space.Space(**known, claim=claim, files=files)

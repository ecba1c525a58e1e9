"""Runs the cases with pytest, in a temporary project that is a copy of `cases/`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from windlass.conformance.case_result import CaseResult
from windlass.engines.engine_table import has_pods, make_engine
from windlass.errors import EngineError, EngineMissing, SpecError
from windlass.settings import Settings

if TYPE_CHECKING:
    from windlass.conformance.case_plugin import CaseRecorder
    from windlass.conformance.cluster_place import ConformancePlace

CASES = Path(__file__).parent / "cases"
_NEEDED = ("pytest", "pytest_timeout")
_INI = """\
[pytest]
pythonpath = .
addopts = --import-mode=importlib --strict-markers --timeout=300
"""
_REINSTALL = "run `pip install --upgrade 'windlass[conformance]'`"


def check_pytest() -> None:
    """Raise EngineMissing if pytest is not installed. No other part of Windlass needs it."""
    if any(importlib.util.find_spec(name) is None for name in _NEEDED):
        raise EngineMissing(
            "windlass conformance needs pytest", hint="run `pip install 'windlass[conformance]'`"
        )


def run_cases(
    settings: Settings,
    *,
    keyword: str,
    runs_all: bool,
    claim: str,
    begin: Callable[[list[str]], None],
    report_result: Callable[[CaseResult], None],
) -> None:
    """Run the chosen cases and report each result. Missing requirements raise before the first case.

    `begin` receives the names of all cases. KeyboardInterrupt is raised after the cleanup.
    """
    from windlass.conformance.case_plugin import CaseChoice, CaseRecorder

    engine = make_engine(settings.engine, settings)
    with (
        _sigterm_as_interrupt(),
        _open_place(settings, claim) as place,
        _make_project() as (project, scratch),
    ):
        choice = CaseChoice(
            engine=engine.name,
            can=engine.can,
            place=place,
            claim=claim,
            runs_all=runs_all or bool(keyword),
        )
        recorder = CaseRecorder(choice=choice, begin=begin, report_result=report_result)
        _run_pytest(recorder, project, scratch, keyword)
    if recorder.was_interrupted:
        raise KeyboardInterrupt


@contextlib.contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Treat SIGTERM like Ctrl-C, so that the cleanup runs."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _open_place(
    settings: Settings, claim: str
) -> contextlib.AbstractContextManager[ConformancePlace | None]:
    if has_pods(settings.engine, settings):
        from windlass.conformance.cluster_place import open_place

        return open_place(settings)
    if claim:
        raise SpecError("--shared-claim is only for clusters", hint="omit it")
    return contextlib.nullcontext()


def _run_pytest(recorder: CaseRecorder, project: Path, scratch: Path, keyword: str) -> None:
    import pytest

    from windlass.conformance import case_plugin

    words = ["-c", str(project / "pytest.ini"), f"--rootdir={project}", f"--basetemp={scratch}"]
    words += ["-p", "no:cacheprovider", "-p", "pytest_timeout", str(project)]
    words += ["-k", keyword] if keyword else []
    # discard pytest's own report, because the table replaces it
    with (
        _in_project(project),
        open(os.devnull, "w") as nowhere,
        contextlib.redirect_stdout(nowhere),
    ):
        code = pytest.main(words, plugins=[recorder, case_plugin])
    if recorder.collect_error:
        raise EngineError(f"the cases cannot be loaded:\n{recorder.collect_error}")
    if code == pytest.ExitCode.NO_TESTS_COLLECTED:
        raise SpecError(
            f"no case matches {keyword!r}", hint="run all cases with `windlass conformance --all`"
        )
    if code in (pytest.ExitCode.INTERNAL_ERROR, pytest.ExitCode.USAGE_ERROR):
        raise EngineError(f"pytest could not run the cases (exit code {code:d})", hint=_REINSTALL)


@contextlib.contextmanager
def _make_project() -> Iterator[tuple[Path, Path]]:
    """Create a project from the cases, and a folder for the files they write."""
    with tempfile.TemporaryDirectory(prefix="windlass-conformance-") as folder:
        project = Path(folder).resolve() / "project"
        shutil.copytree(CASES, project, ignore=shutil.ignore_patterns("__pycache__"))
        (project / "windlass.toml").touch()
        (project / "pytest.ini").write_text(_INI)
        yield project, project.with_name("scratch")


@contextlib.contextmanager
def _in_project(project: Path) -> Iterator[None]:
    """Enter the project, without the user's pytest options and plugins."""
    here, environ = Path.cwd(), dict(os.environ)
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.chdir(project)
    try:
        yield
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(environ)

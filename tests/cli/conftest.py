"""Command line as a separate process, in a small project."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cli.process import WINDLASS, WORK, Ran
from waits import wait_for


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "work.py").write_text(WORK)
    (folder / "show_args.py").write_text(
        "import json, os, sys\n"
        "open(f'args-{os.environ[\"RANK\"]}.json', 'w').write(json.dumps(sys.argv))\n"
    )
    return folder


@pytest.fixture
def windlass(project: Path) -> Callable[..., Ran]:
    """Return a function that runs one command in the project.

    `env` adds to its environment.
    """

    def run(*words: str, env: dict[str, str] | None = None, cwd: Path = project) -> Ran:
        done = subprocess.run(
            [*WINDLASS, *words],
            cwd=cwd,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert "Traceback (most recent" not in done.stderr or "[" in done.stderr, done.stderr
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def started(project: Path) -> Callable[..., subprocess.Popen[str]]:
    """Return a function that starts a command, and returns once its stdout contains `until`."""

    def start(*words: str, until: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*WINDLASS, *words],
            cwd=project,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if until in line:
                return process
        raise AssertionError(f"ended before {until!r}: {process.communicate()}")

    return start


@pytest.fixture
def running(windlass: Callable[..., Ran]) -> Callable[..., str]:
    """Return a function that starts a detached job, and returns its id once all ranks run."""

    def start(function: str = "stay", *words: str) -> str:
        ref = windlass("run", f"work.py::{function}", "--detach", *words).out.strip()
        wait_for(
            lambda: "up" in windlass("logs", ref, "--rank", "0").out, f"{ref} is up", timeout_s=60
        )
        return ref.removeprefix("local://")

    return start

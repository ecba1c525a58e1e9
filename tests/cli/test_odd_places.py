"""Closed streams, damaged folders and unfinished submits. Damage to one job does not affect others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import windlass as wl


def _shell(line: str, **env: str) -> subprocess.CompletedProcess[str]:
    windlass = f"{sys.executable} -m windlass.cli.main"
    return subprocess.run(
        [
            "sh",
            "-c",
            f"{windlass} {line.removeprefix('windlass ')}"
            if line.startswith("windlass ")
            else line,
        ],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch) -> Path:
    (tmp_path / "hello.py").write_text("print('hello')\n")
    (tmp_path / "torchy.py").write_text("import torch\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("closed", [">&-", "2>&-", ">&- 2>&-"])
def test_closed_streams(closed):
    assert _shell(f"windlass run hello.py {closed}").returncode == 0
    assert _shell(f"windlass ls {closed}").returncode == 0
    assert wl.jobs()[0].status().phase.value == "succeeded"


def test_full_device_is_reported():
    ran = _shell("windlass config > /dev/full")
    assert ran.returncode == 3
    assert "No space left on device" in ran.stderr
    assert "Exception ignored" not in ran.stderr


def test_damaged_job_is_omitted_and_can_be_removed(home):
    wl.run(int, quiet=True)
    wl.run(int, quiet=True, name="whole")
    bad = wl.jobs()[1].id
    (home / "jobs" / bad / "status.json").write_text("{bad")
    listed = _shell("windlass ls")
    assert listed.returncode == 0
    assert "whole" in listed.stdout
    assert bad in listed.stderr
    assert _shell("windlass status whole").returncode == 0
    ran = _shell(f"windlass status {bad}")
    assert ran.returncode == 3
    assert f"windlass rm {bad}" in ran.stderr
    assert _shell(f"windlass rm {bad}").returncode == 0
    assert [job.status().name for job in wl.jobs()] == ["whole"]


def test_unfinished_submit_is_not_a_job(home):
    wl.run(int, quiet=True, name="whole")
    unfinished = home / "jobs" / "train-abcde"
    unfinished.mkdir()
    (unfinished / "payload.pkl").write_bytes(b"half of it")
    assert [job.status().name for job in wl.jobs()] == ["whole"]
    assert _shell("windlass status whole").returncode == 0
    assert _shell("windlass rm --ended").returncode == 0


def test_deleted_working_folder(place):
    gone = place / "gone"
    gone.mkdir()
    leave = f"cd {gone} && rmdir {gone} && exec {sys.executable} -m windlass.cli.main"
    ran = _shell(f"{leave} run hello.py")
    assert ran.returncode == 2
    assert "the current folder no longer exists" in ran.stderr
    gone.mkdir()
    assert _shell(f"{leave} ls").returncode == 0


def test_invalid_variable_is_reported_once():
    wl.run(int, quiet=True)
    ran = _shell("windlass run torchy.py", WINDLASS_PROCS="abc")
    assert ran.returncode == 2
    assert "WINDLASS_PROCS must be" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_cache_that_cannot_be_created(place):
    (place / "file").touch()
    ran = _shell("windlass run hello.py", XDG_CACHE_HOME=str(place / "file"))
    assert ran.returncode == 3
    assert "cannot store the agent at" in ran.stderr
    assert "XDG_CACHE_HOME" in ran.stderr


def test_a_job_within_a_job():
    def outer():
        return wl.run(lambda: "inner", quiet=True)

    assert wl.run(outer, quiet=True) == [["inner"]]


def test_tracebacks_show_no_windlass_frames(place):
    (place / "wrong.py").write_text("def f(:\n")
    ran = _shell("windlass run wrong.py")
    assert ran.returncode == 1
    assert "SyntaxError" in ran.stderr
    assert "windlass/agent" not in ran.stderr

"""Clients read, cancel and remove jobs of version 0.1.0, and computes that it started.

Two recorded folders hold jobs in that version's format. If the repository's history is available, a client of
that version also starts jobs and computes.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compat.version_0_1_0 import DATA, NoHistory, start, unpack_source
from waits import wait_for

import windlass as wl
from windlass.wire.messages.calls import COMPUTE_LEAD_TO_CLIENT
from windlass.wire.messages.jobs import LEAD_TO_CLIENT
from windlass.wire.status import FailureKind


@pytest.fixture
def recorded(home: Path) -> Path:
    """Return a home with the folders of two jobs of version 0.1.0."""
    jobs = home / "jobs"
    shutil.copytree(DATA / "jobs", jobs)
    for folder in (home, jobs, *jobs.iterdir()):
        folder.chmod(0o700)
    return home


def run_windlass(*words: str) -> subprocess.CompletedProcess[str]:
    words = (sys.executable, "-m", "windlass.cli.main", *words)
    return subprocess.run(words, capture_output=True, text=True, timeout=120)


# -- recorded jobs -------------------------------------------------------------------------------


def test_a_job_that_succeeded_is_read_and_removed(recorded):
    job = wl.attach("add")
    assert job.status().phase.value == "succeeded"
    assert [rank.state.value for rank in job.status().ranks] == ["returned", "returned"]
    assert job.results() == [3, 3]
    assert sorted(line.text for line in job.logs()) == ["adding on 0", "adding on 1"]
    job.cancel()  # it has ended, so this does nothing
    assert job.status().phase.value == "succeeded"
    job.remove()
    assert not (recorded / "jobs" / job.id).exists()


def test_failed_job_reports_its_cause(recorded):
    job = wl.attach("fail")
    verdict = job.status().verdict
    assert (verdict.kind, verdict.rank) == (FailureKind.USER_ERROR, 1)
    assert verdict.exception == "ValueError: boom"
    with pytest.raises(ValueError, match="boom"):
        job.results()


@pytest.mark.parametrize("verb", ["status", "why", "logs", "result", "rm"])
def test_command_line_shows_the_recorded_job(recorded, verb):
    ran = run_windlass(verb, "add")
    assert ran.returncode == 0, ran.stderr


def test_both_are_listed(recorded):
    assert sorted(job.status().name for job in wl.jobs()) == ["add", "fail"]


HEARD = json.loads((DATA / "messages.json").read_text())
DIRECTIONS = {(one.sender, one.receiver): one for one in (LEAD_TO_CLIENT, COMPUTE_LEAD_TO_CLIENT)}


@pytest.mark.parametrize(
    ("sender", "receiver", "header"), HEARD, ids=[row[2]["type"] for row in HEARD]
)
def test_messages_of_its_leads_are_understood(sender, receiver, header):
    message = DIRECTIONS[sender, receiver].read(header)
    understood = message.to_header()
    for key, value in header.items():
        if isinstance(value, list):  # may contain records
            assert len(understood[key]) == len(value)
        else:
            assert understood[key] == value


# -- running jobs --------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def source(tmp_path_factory) -> Path:
    try:
        return unpack_source(tmp_path_factory.mktemp("version-0.1.0").resolve())
    except NoHistory as missing:
        pytest.skip(str(missing))


@pytest.fixture(params=["local", pytest.param("kubernetes", marks=pytest.mark.cluster)])
def engine(request, monkeypatch) -> str:
    monkeypatch.setenv("WINDLASS_ENGINE", request.param)
    if request.param != "local":
        for name, value in request.getfixturevalue("space").settings.items():
            monkeypatch.setenv(name, value)
    return request.param


@pytest.mark.long
def test_a_job_that_runs_is_read_cancelled_and_removed(source, engine, tmp_path):
    job = wl.attach(start(source, "stay", tmp_path / "project"))
    wait_for(lambda: job.status().phase.value == "running", "its ranks run", 120.0)
    wait_for(
        lambda: [line.text for line in job.logs()] == ["up", "up"], "their logs are read", 60.0
    )
    job.cancel()
    assert job.wait(60).phase.value == "cancelled"
    job.remove()
    assert job.id not in [one.id for one in wl.jobs()]


@pytest.mark.long
def test_a_job_that_has_ended_gives_its_results(source, engine, tmp_path):
    job = wl.attach(start(source, "add", tmp_path / "project"))
    assert job.results() == [3, 3]
    job.remove()


@pytest.mark.long
def test_compute_is_called_and_removed(source, engine, tmp_path, monkeypatch):
    start(source, "compute", tmp_path / "project")
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.syspath_prepend(tmp_path / "project")
    old_work = importlib.import_module("old_work")
    (job,) = wl.jobs()
    assert job.status().phase.value == "running"
    compute = wl.Compute(name="warm")
    assert wl.fn(old_work.add).to(compute)(1) == 3
    compute.teardown()
    wait_for(lambda: job.status().phase.is_final, "its nodes are down", 120.0)
    job.remove()

"""The local engine: unknown jobs, refused operations, and problems with disks and folders."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from pathlib import Path

import pytest
import rank_work as work
from waits import wait_for

import windlass as wl
from windlass import records
from windlass.client.jobs.run import prepare_job
from windlass.engines.engine_table import (
    engine_names,
    make_compute_engine,
    make_engine,
    make_renderer,
    renderer_names,
)
from windlass.engines.protocol import JobRef
from windlass.settings import read_settings
from windlass.wire.job_folder import JobFolder


def settings(**flags):
    return read_settings(flags=flags, environ=os.environ, start=Path.cwd())


@pytest.fixture
def engine():
    return make_engine("local", settings())


@pytest.fixture
def prepared():
    return prepare_job(work.rank, detach=True, flags={})


# -- by name ---------------------------------------------------------------------------------------


def test_the_engines():
    assert "local" in engine_names()
    for name in engine_names():
        assert make_engine(name, settings()).name == name
        if "computes" in make_engine(name, settings()).can:
            assert make_compute_engine(name, settings()).name == name
        else:
            with pytest.raises(wl.SpecError, match="supports jobs but not computes"):
                make_compute_engine(name, settings())
    assert set(renderer_names()) - set(engine_names()) == {"statefulset"}
    for name in renderer_names():
        assert make_renderer(name, settings()).name == name


@pytest.mark.parametrize(
    ("name", "hint"), [("locl", "did you mean local?"), ("x" * 20, "available engines: local")]
)
def test_an_unknown_engine(name, hint):
    with pytest.raises(wl.SpecError, match=f"unknown engine '{name}'") as caught:
        make_engine(name, settings())
    assert hint in caught.value.hint


def test_references_print_as_urls():
    assert str(JobRef("local", "train-abc")) == "local://train-abc"


# -- existing jobs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("job_id", ["nope", "", "..", "a/b", "/etc"])
def test_an_unknown_job(engine, job_id):
    ref = JobRef("local", job_id)
    for ask in (engine.status, engine.results, engine.cancel, engine.remove):
        with pytest.raises(wl.JobNotFound, match="not found") as caught:
            ask(ref)
        assert caught.value.hint == "run `windlass ls` to list the jobs"


def test_similar_job_id_is_suggested(engine):
    job = wl.submit(work.rank)
    job.wait(30)
    with pytest.raises(wl.JobNotFound) as caught:
        engine.status(JobRef("local", f"{job.id}x"))
    assert caught.value.hint == f"did you mean {job.id}?"


def test_missing_home_means_no_jobs(engine, home):
    assert engine.jobs() == []
    assert not home.exists()


def test_jobs_are_newest_first_and_foreign_folders_ignored(engine, home):
    for name, age_s in (("old", 100), ("new", 1), ("mid", 50)):
        (home / "jobs" / name).mkdir(parents=True)
        (home / "jobs" / name / "plan.json").write_text("{}")
        os.utime(home / "jobs" / name / "plan.json", (1e9 - age_s, 1e9 - age_s))
    (home / "jobs" / "stranger").mkdir()
    (home / "jobs" / "file").touch()
    assert [ref.job_id for ref in engine.jobs()] == ["new", "mid", "old"]


def test_render_returns_the_plan(engine, prepared, home):
    [document] = engine.render(prepared.plan)
    assert document == {"kind": "Plan", **records.to_json(prepared.plan)}
    assert not home.exists()


# -- refused operations ----------------------------------------------------------------------------


def test_a_running_job_is_not_removed(home):
    job = wl.submit(work.hang)
    try:
        with pytest.raises(wl.SpecError, match=f"{job.id} is still ") as caught:
            job.remove()
        assert caught.value.hint.startswith(f"run `windlass cancel {job.id}`")
        assert (home / "jobs" / job.id / "plan.json").exists()
    finally:
        job.cancel(now=True)
        job.wait(30)
    job.remove()
    assert not (home / "jobs" / job.id).exists()


def test_second_start_of_a_plan_is_refused(engine, prepared):
    job = prepared.start()
    assert job.results(timeout_s=30) == [0]
    with pytest.raises(wl.EngineError, match=r"the job .* already exists"):
        prepared.start()
    assert job.results() == [0]


def test_second_start_of_a_running_plan_is_refused(prepared, tmp_path):
    flag = tmp_path / "flag"
    prepared = prepare_job(work.wait_and_return, (str(flag),), detach=True, flags={})
    job = prepared.start()
    with pytest.raises(wl.EngineError, match=r"the job .* already exists"):
        prepared.start()
    flag.touch()
    assert job.results(timeout_s=30) == ["done"]


# -- folders ---------------------------------------------------------------------------------------


@pytest.fixture
def temporary(monkeypatch):
    """Set a new TMPDIR with a short path, because it holds sockets."""
    with tempfile.TemporaryDirectory(prefix="wl") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)  # tempfile caches the folder
        yield Path(folder)


def test_socket_folder_is_private_and_removed_at_the_end(temporary, tmp_path):
    flag = tmp_path / "flag"
    job = wl.submit(work.wait_and_return, (str(flag),))
    ours = temporary / f"windlass-{os.getuid()}"
    assert [stat.S_IMODE(path.stat().st_mode) for path in (ours, ours / job.id)] == [0o700, 0o700]
    flag.touch()
    job.wait(30)
    wait_for(lambda: list(ours.iterdir()) == [], "the sockets are gone")


@pytest.mark.parametrize("mode", [0o777, 0o750, 0o701])
def test_socket_folder_open_to_others_is_refused(temporary, home, mode):
    ours = temporary / f"windlass-{os.getuid()}"
    ours.mkdir()
    ours.chmod(mode)
    with pytest.raises(wl.EngineError, match="is open to other users") as caught:
        wl.submit(work.rank)
    assert f"chmod 700 {ours}" in caught.value.hint
    assert not (home / "jobs").exists()


def test_socket_folder_that_is_a_link_is_refused(temporary, tmp_path):
    (tmp_path / "theirs").mkdir(mode=0o700)
    (temporary / f"windlass-{os.getuid()}").symlink_to(tmp_path / "theirs")
    with pytest.raises(wl.EngineError, match="is a link") as caught:
        wl.submit(work.rank)
    # chmod would change the target of the link
    assert "chmod" not in caught.value.hint
    assert list((tmp_path / "theirs").iterdir()) == []


def test_socket_folder_that_cannot_be_created(temporary, home):
    (temporary / f"windlass-{os.getuid()}").touch()
    with pytest.raises(wl.EngineError, match="is not a folder") as caught:
        wl.submit(work.rank)
    assert "TMPDIR" in caught.value.hint
    assert not (home / "jobs").exists()


def test_long_temporary_folder_is_not_used_for_sockets(temporary, monkeypatch, tmp_path):
    long = temporary / ("x" * 100)
    long.mkdir()
    monkeypatch.setenv("TMPDIR", str(long))
    monkeypatch.setattr(tempfile, "tempdir", None)
    flag = tmp_path / "flag"
    job = wl.submit(work.wait_and_return, (str(flag),))
    sockets = tmp_path / "home" / "jobs" / job.id / "sockets"
    assert len(sockets.read_text()) < 90
    flag.touch()
    assert job.results(timeout_s=30) == ["done"]
    assert list(long.iterdir()) == []


@pytest.mark.parametrize("where", ["", "jobs"])
def test_file_in_place_of_the_home(home, where):
    (home / where).parent.mkdir(parents=True, exist_ok=True)
    (home / where).write_text("mine")
    with pytest.raises(wl.EngineError, match="cannot start the job in") as caught:
        wl.submit(work.rank)
    assert "WINDLASS_HOME" in caught.value.hint
    assert (home / where).read_text() == "mine"


# -- dead leads ------------------------------------------------------------------------------------


def test_client_judges_a_dead_lead(home):
    job = wl.submit(work.hang)
    wait_for(lambda: job.status().nodes[0].pid is not None, "the lead is running")
    os.kill(job.status().nodes[0].pid, signal.SIGKILL)
    with JobFolder(home / "jobs" / job.id).lead_lock.open() as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # another client reads the status too
        status = job.wait(30)
    assert (status.phase.value, status.verdict.kind.value) == ("failed", "lost node")
    assert status.verdict.next == f"cat {home}/jobs/{job.id}/agent-0.log"
    with pytest.raises(wl.NodeLost):
        job.results()


# -- a full disk -----------------------------------------------------------------------------------


@pytest.fixture
def small_disk(home):
    """Mount a 512 KiB filesystem as the home directory."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root mounts a small disk")
    home.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "windlass-test", str(home)],
        capture_output=True,
        text=True,
    )
    if made.returncode != 0:
        pytest.skip(f"no disk can be mounted here: {made.stderr.strip()}")
    yield home
    from waits import find_leftovers

    wait_for(lambda: not find_leftovers(home), "no process is left on the disk")
    subprocess.run(["umount", "-l", str(home)], check=True)


# Source code that is sent with the functions below, because a rank cannot import this file.
FILL = """
def fill(folder):
    try:
        with open(f"{folder}/ballast", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
    except OSError:
        pass
"""


def fill(folder):
    """Write until the disk is full."""
    space: dict = {}
    exec(FILL, space)
    space["fill"](folder)
    with pytest.raises(OSError, match="No space left"):
        Path(folder, "more").write_bytes(b"x" * 8192)


def test_job_on_a_full_disk_is_refused(small_disk):
    (small_disk / "jobs").mkdir()
    fill(small_disk)
    with pytest.raises(wl.EngineError, match="No space left on device") as caught:
        wl.submit(work.rank)
    assert "free some space" in caught.value.hint
    assert list((small_disk / "jobs").iterdir()) == []
    (small_disk / "ballast").unlink()
    assert wl.submit(work.rank).results(timeout_s=30) == [0]


def test_logs_that_fill_the_disk_are_reported(small_disk):
    def write_much():
        for _ in range(3000):
            print("x" * 1000)
        return "done"

    job = wl.submit(write_much)
    status = job.wait(60)
    warnings = [c for c in status.conditions if c.reason == "LogTruncated"]
    assert [c.message for c in warnings] == ["rank-0.log is incomplete: No space left on device"]
    assert status.phase.value in ("succeeded", "failed")
    if status.phase.value == "failed":  # there was no space for the result either
        assert "bytes: No space left on device" in status.verdict.message
        assert (status.verdict.rank, status.verdict.kind.value) == (0, "user error")
        with pytest.raises((OSError, wl.JobError)):
            job.results()
    else:
        assert job.results() == ["done"]


def test_result_that_does_not_fit_fails_the_job(small_disk):
    job = wl.submit(lambda: os.urandom(2_000_000))
    status = job.wait(60)
    assert status.phase.value == "failed"
    assert "the result of 2000" in status.verdict.message
    assert "bytes: No space left on device" in status.verdict.message


def test_verdict_of_a_job_that_fails_on_a_full_disk(small_disk):
    disk = str(small_disk)

    def fail():
        exec(FILL, space := {})
        space["fill"](disk)
        raise LookupError("the cause")

    job = wl.submit(fail, procs=2)
    status = job.wait(60)
    assert status.phase.value == "failed"
    assert "LookupError: the cause" in status.verdict.message


def test_verdict_of_a_job_that_is_killed_on_a_full_disk(small_disk):
    disk = str(small_disk)

    def die():
        exec(FILL, space := {})
        space["fill"](disk)
        os.kill(os.getpid(), signal.SIGKILL)

    status = wl.submit(die).wait(60)
    assert (status.phase.value, status.verdict.signal) == ("failed", "SIGKILL")

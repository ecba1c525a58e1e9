"""Attack: a job that fills the disk of its node or its client, and a power cut at its end.

Logs and job folders have limits. A full disk is reported, does not end the job, and does not change the
verdict. The verdict and the results are on disk before a client learns of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import rank_work as work
from pod_connections import make_job, run_lead_server
from tls_peers import JOB, connect_lead, until

import windlass as wl
from windlass import names
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.node.rank_streams import RankStreams, share_room
from windlass.engines.cluster.lead_sync import LeadSync
from windlass.engines.finished_jobs import forget_old_jobs
from windlass.wire.file_sync import Piece, Receiver, is_from_lead
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.results import ResultHeader, write_result
from windlass.wire.status import Phase, make_first_status, render_status

MB = 1 << 20


@contextlib.contextmanager
def _small_disk(path: Path, size: int):
    """Mount a small file system at `path`."""
    path.mkdir(parents=True)
    options = f"size={size},mode=0700"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "none", str(path)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("only root can make a small disk")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


# -- a full disk -----------------------------------------------------------------------------------


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Create a script that prints 16 MiB, and a function that returns 16 MiB."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "talk.py").write_text("for _ in range(16):\n    print('x' * (1 << 20))\n")
    (tmp_path / "large.py").write_text("def large():\n    return bytes(16 << 20)\n")


def test_job_that_fills_its_disk_succeeds_with_a_condition(home, project):
    with _small_disk(home, 4 * MB):
        job = wl.submit("talk.py")
        status = job.wait(120)
        assert status.phase is Phase.SUCCEEDED
        messages = [c.message for c in status.conditions if c.reason == names.REASON_LOG_TRUNCATED]
        assert messages == ["rank-0.log is incomplete: No space left on device"]


def test_result_that_does_not_fit_raises_oserror(home, project):
    with _small_disk(home, 4 * MB):
        job = wl.submit("large.py::large")
        with pytest.raises(OSError, match=r"cannot write the result of \d+ bytes"):
            job.results(timeout_s=120)
        assert job.status().phase is Phase.FAILED


def test_submit_without_disk_space_names_the_folder(home):
    with _small_disk(home, 2 * MB):
        with contextlib.suppress(OSError), (home / "full").open("wb") as file:
            while True:
                file.write(bytes(4096))
        with pytest.raises(wl.EngineError, match=str(home)) as caught:
            wl.submit(work.rank)
        assert "free some space there" in caught.value.hint
        assert list((home / "jobs").iterdir()) == []


def test_client_resumes_when_its_disk_has_space_again(tmp_path, caplog):
    """A real connection to a real server receives data that does not fit on the client's disk."""

    async def visit(scene, disk):
        folder = JobFolder(disk / "client")
        folder.path.mkdir()
        (disk / "full").write_bytes(bytes(MB))
        line = LeadSync(JOB, folder, lambda: connect_lead(scene.port, scene.files))
        scene.folder.make_attempt(0)
        write_atomically(scene.folder.result(0, 0), bytes(3 * MB))
        last = render_status(replace(make_first_status(make_job()), phase=Phase.SUCCEEDED))
        write_atomically(scene.folder.status, last)
        await until(lambda: line.cannot_keep is not None, "the failure is recorded")
        assert "No space left on device" in line.cannot_keep.message
        assert not folder.status.exists() or folder.status.read_bytes() != last
        (disk / "full").unlink()
        await until(
            lambda: folder.status.exists() and folder.status.read_bytes() == last,
            "everything was copied",
        )
        assert folder.result(0, 0).stat().st_size == 3 * MB
        assert caplog.text.count("cannot write to") == 1
        await asyncio.to_thread(line.close)

    with _small_disk(tmp_path / "disk", 3 * MB + MB // 2) as disk:
        run_lead_server(tmp_path, lambda scene: visit(scene, disk))


# -- limits ----------------------------------------------------------------------------------------


def test_log_has_a_limit_and_truncation_is_reported(tmp_path):
    async def run() -> tuple[bytes, list[str]]:
        messages: list[str] = []
        streams = RankStreams(tmp_path / "rank-0.log", messages.append, max_bytes=10_000)
        ends = streams.open()
        for number in range(1000):
            os.write(ends[0], b"line %d\n" % number)
            await asyncio.sleep(0)
        for end in ends:
            os.close(end)
        streams.close()
        return (tmp_path / "rank-0.log").read_bytes(), messages

    log, messages = asyncio.run(run())
    assert 5_000 < len(log) <= 10_000
    assert b"line 0\n" in log
    assert messages == ["rank-0.log is incomplete: it has reached the maximum size of a log"]


def test_logs_of_a_job_have_a_total_limit(tmp_path):
    folder = JobFolder(tmp_path)
    total = 0
    for attempt in range(40):
        folder.make_attempt(attempt)
        room = share_room(folder, num_nodes=1, num_ranks=4)
        assert attempt > 5 or room > 10 << 20
        for rank in range(4):
            with folder.log(attempt, rank).open("wb") as log:
                log.truncate(room)  # sparse: it takes no disk space
        total += 4 * room
    assert names.MAX_LOG_BYTES * 0.99 < total <= names.MAX_LOG_BYTES


def test_log_stops_before_its_disk_is_full(tmp_path):
    async def run(disk: Path) -> list[str]:
        messages: list[str] = []
        (disk / "other").write_bytes(bytes(4 * MB - 64 * 1024))
        streams = RankStreams(disk / "rank-0.log", messages.append)
        ends = streams.open()
        os.write(ends[0], b"a line\n")
        for end in ends:
            os.close(end)
        streams.close()
        assert (disk / "rank-0.log").read_bytes() == b""
        return messages

    with _small_disk(tmp_path / "disk", 4 * MB) as disk:
        assert asyncio.run(run(disk)) == ["rank-0.log is incomplete: its disk is nearly full"]


def test_log_copy_has_the_same_limit(tmp_path):
    receiver = Receiver(JobFolder(tmp_path), is_from_lead)
    path = "attempt-0/rank-0.log"
    receiver.take(Piece(path=path, offset=0, body=b"a line\n"))
    receiver.take(Piece(path=path, offset=names.MAX_LOG_BYTES, body=b"too much\n"))
    assert (tmp_path / path).read_bytes() == b"a line\n"


def test_home_keeps_newest_and_unfinished_jobs(tmp_path, caplog):
    for number in range(20):
        folder = tmp_path / f"job-{number}"
        folder.mkdir()
        (folder / names.PLAN_FILE).touch()
        os.utime(folder / names.PLAN_FILE, (number, number))
    (tmp_path / "being-made").mkdir()
    forgotten = forget_old_jobs(tmp_path, lambda path: path.name != "job-1", max_jobs=15, room=3)
    assert forgotten == [f"job-{number}" for number in (0, 2, 3, 4, 5, 6, 7, 8)]
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"being-made", "job-1", *(f"job-{number}" for number in range(9, 20))}
    assert "the 8 oldest ended ones were removed" in caplog.text
    assert forget_old_jobs(tmp_path, lambda path: True, max_jobs=15, room=3) == []


# -- a power cut -----------------------------------------------------------------------------------


@pytest.fixture
def synced(monkeypatch):
    """Return the list of syncs and renames, in order. It grows while the test runs."""
    done: list[str] = []
    fsync, replace_file = os.fsync, Path.replace

    def note_sync(fd: int) -> None:
        fsync(fd)
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        done.append("folder" if path.is_dir() else "bytes")

    def note_replace(self: Path, target: Path) -> Path:
        done.append(f"rename to {Path(target).name}")
        return replace_file(self, target)

    monkeypatch.setattr(os, "fsync", note_sync)
    monkeypatch.setattr(Path, "replace", note_replace)
    return done


def test_result_is_synced_before_its_rename(tmp_path, synced):
    header = ResultHeader(rank=0, attempt=0, state="returned", at_s=0.0)
    write_result(tmp_path / "rank-0.result", header, b"value")
    assert synced == ["bytes", "rename to rank-0.result", "folder"]


def test_only_the_final_status_is_synced(tmp_path, synced):
    async def run() -> None:
        status_writer = StatusWriter(make_job(), JobFolder(tmp_path))
        synced.clear()
        status_writer.set_phase(Phase.RUNNING, "R", "it runs")
        assert synced == ["rename to status.json"]
        synced.clear()
        status_writer.set_phase(Phase.SUCCEEDED, "R", "it ended")

    asyncio.run(run())
    assert synced == ["bytes", "rename to status.json", "folder"]


def test_result_copy_is_synced_before_its_status(tmp_path, synced):
    receiver = Receiver(JobFolder(tmp_path), is_from_lead)
    path = "attempt-0/rank-0.result"
    receiver.take(Piece(path=path, offset=0, body=b"ab", total_bytes=4))
    receiver.take(Piece(path=path, offset=2, body=b"cd", total_bytes=4))
    receiver.take(Piece(path="status.json", offset=0, body=b"{}", total_bytes=2), is_last=True)
    assert synced == [
        *("bytes", "rename to rank-0.result", "folder"),
        *("bytes", "rename to status.json", "folder"),
    ]

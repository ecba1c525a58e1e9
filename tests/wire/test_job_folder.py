"""Folder of a job: the location of each file, and atomic writes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from windlass.wire.job_folder import JobFolder, write_atomically


def test_the_names_are_frozen():
    """Other versions and users look for these files."""
    folder = JobFolder(Path("/j"))
    assert [str(path.relative_to("/j")) for path in (
        folder.plan, folder.payload, folder.status, folder.reserve, folder.lead_lock,
        folder.agent_log(1), folder.attempt(2),
        folder.log(0, 3), folder.result(0, 3), folder.error(0, 3),
    )] == [
        "plan.json", "payload.pkl", "status.json", "status.reserve", "lead.lock", "agent-1.log", "attempt-2",
        "attempt-0/rank-3.log", "attempt-0/rank-3.result", "attempt-0/rank-3.error.json",
    ]  # fmt: skip


def test_attempts_are_found_in_order(tmp_path):
    for name in ("attempt-10", "attempt-2", "attempt-0", "attempt-x", "attempt-", "other"):
        (tmp_path / name).mkdir()
    assert JobFolder(tmp_path).attempts() == [0, 2, 10]
    assert JobFolder(tmp_path / "nowhere").attempts() == []


def test_file_is_replaced_atomically(tmp_path):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    write_atomically(path, b"new ", b"and ", b"longer")
    assert path.read_bytes() == b"new and longer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("chunks", "error"),
    [((b"new", "text"), TypeError), ((b"new", None), TypeError)],
)
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, chunks, error):
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(error):
        write_atomically(path, *chunks)
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_folder_in_the_way(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError):
        write_atomically(tmp_path / "file", b"new")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_missing_folder(tmp_path):
    with pytest.raises(FileNotFoundError):
        write_atomically(tmp_path / "nowhere" / "file", b"new")
    assert list(tmp_path.iterdir()) == []


def test_readers_see_the_old_or_the_new_file(tmp_path):
    path = tmp_path / "file"
    contents = {b"a" * 100_000, b"b" * 70_000}
    write_atomically(path, b"a" * 100_000)
    writers = [
        threading.Thread(target=lambda c=content: [write_atomically(path, c) for _ in range(50)])
        for content in contents
    ]
    for writer in writers:
        writer.start()
    seen = set()
    while any(writer.is_alive() for writer in writers):
        seen.add(path.read_bytes())
    for writer in writers:
        writer.join()
    assert seen <= contents
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]

"""Attack: another user creates the folder in shared memory first, and puts pickles there for the client.

Large arguments and results of calls are in /dev/shm, where all users may write and list names.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from windlass.wire.payloads import make_spill_folder, remove_spills

CALL = """
import windlass as wl

def echo(data):
    return len(data)

if __name__ == "__main__":
    compute = wl.Compute(name="c", inactivity_ttl=60)
    try:
        print("answer", wl.fn(echo).to(compute)(bytes(3 << 20)))
    finally:
        compute.teardown()
"""


def _parent(user) -> Path:
    return Path(f"/dev/shm/windlass-{user.uid}")


def test_payload_folder_is_private(victim, stranger):
    ran = victim.python(CALL.replace("teardown()", "name"))
    assert "answer 3145728" in ran.stdout, ran.stderr
    folders = [_parent(victim), *_parent(victim).iterdir()]
    assert len(folders) == 2
    assert {stat.S_IMODE(folder.stat().st_mode) for folder in folders} == {0o700}
    assert stranger.run("ls", str(_parent(victim))).returncode != 0
    victim.python("import windlass as wl; wl.Compute(name='c').teardown()")
    assert list(_parent(victim).iterdir()) == []


@pytest.mark.parametrize("mode", [0o700, 0o777])
def test_folder_of_another_user_is_not_used(victim, stranger, mode):
    stranger.mkdir(_parent(victim), mode)
    ran = victim.python(CALL)
    assert "answer 3145728" in ran.stdout, ran.stderr
    assert list(_parent(victim).iterdir()) == []  # no payload was put there


def test_link_of_another_user_is_not_followed(victim, stranger):
    theirs = stranger.mkdir(Path(f"/dev/shm/windlass-{stranger.uid}"), 0o777)
    _parent(victim).symlink_to(theirs)
    stranger.give(_parent(victim))
    ran = victim.python(CALL)
    assert "answer 3145728" in ran.stdout, ran.stderr
    assert list(theirs.iterdir()) == []


@pytest.mark.parametrize("is_link", [False, True])
def test_own_folder_that_others_can_enter_is_not_used(tmp_path, monkeypatch, is_link):
    monkeypatch.setattr("windlass.wire.payloads._SHARED_MEMORY", str(tmp_path))
    mine = tmp_path / f"windlass-{os.geteuid()}"
    if is_link:
        (tmp_path / "mine").mkdir(mode=0o700)
        mine.symlink_to(tmp_path / "mine")
    else:
        mine.mkdir()
        mine.chmod(0o777)
    assert make_spill_folder("job-0", tmp_path) == tmp_path / "payloads"
    assert list(mine.iterdir()) == []


def test_only_the_payloads_of_this_job_are_removed(tmp_path, monkeypatch):
    monkeypatch.setattr("windlass.wire.payloads._SHARED_MEMORY", str(tmp_path))
    for name in ("train-0", "train-12", "train-big-0"):
        make_spill_folder(name, tmp_path)
    remove_spills("train")
    assert [path.name for path in (tmp_path / f"windlass-{os.geteuid()}").iterdir()] == [
        "train-big-0"
    ]


def test_payloads_are_beside_the_sockets_without_shared_memory(tmp_path, monkeypatch):
    monkeypatch.setattr("windlass.wire.payloads._SHARED_MEMORY", str(tmp_path / "none"))
    spill = make_spill_folder("job-0", tmp_path)
    assert spill == tmp_path / "payloads"
    assert stat.S_IMODE(spill.stat().st_mode) == 0o700

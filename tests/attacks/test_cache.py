"""Attack: in a cache shared by several users (XDG_CACHE_HOME), another user's program or bytecode.

The agent is built once and cached, and so is the bytecode of its imports. Both are executed.
"""

from __future__ import annotations

import marshal
import os
import stat
import zipfile

import pytest

from windlass.agent.forkserver import import_snapshot
from windlass.engines import archives


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return a cache shared by several users, and set a home with a cache of its own."""
    shared = tmp_path / "cache"
    shared.mkdir()
    shared.chmod(0o1777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(shared))
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    archives._logged.clear()
    return shared


def _evil(path, mark) -> None:
    """Write an archive that creates a file when it runs."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("__main__.py", f"open({str(mark)!r}, 'w').close()")


def test_archive_in_cache_folder_of_another_user_is_not_run(victim, stranger):
    """The stranger knows the archive's name and created the folder first."""
    victim.home.chmod(0o755)
    cache = stranger.mkdir(stranger.home / "cache", 0o1777)
    stranger.home.chmod(0o755)
    script = victim.write("hello.py", "print('hello')")
    ran = victim.windlass("run", str(script))
    assert ran.returncode == 0, ran.stderr
    [name] = [path.name for path in (victim.home / ".cache/windlass").glob("agent-*.pyz")]
    folder = stranger.mkdir(cache / "windlass", 0o755)
    mark = victim.home / "mark"
    _evil(folder / name, mark)
    stranger.give(folder / name)
    ran = victim.windlass("run", str(script), XDG_CACHE_HOME=str(cache))
    assert ran.returncode == 0, ran.stderr
    assert "hello" in ran.stdout
    assert not mark.exists()
    assert ran.stderr.count(f"{folder} belongs to another user (uid {stranger.uid})") == 1


def test_cache_folder_is_private(cache):
    path = archives.local_archive()
    assert path.startswith(str(cache))
    assert stat.S_IMODE((cache / "windlass").stat().st_mode) == 0o700
    assert stat.S_IMODE(os.stat(path).st_mode) == 0o600


def test_writable_cache_folder_of_ours_becomes_private(cache):
    (cache / "windlass").mkdir()
    (cache / "windlass").chmod(0o777)
    assert archives.local_archive().startswith(str(cache))
    assert stat.S_IMODE((cache / "windlass").stat().st_mode) == 0o700


def test_archive_of_another_user_in_our_folder_is_rebuilt(cache, stranger, caplog):
    """Another user created the archive while the folder was writable."""
    path = archives.local_archive()
    os.unlink(path)
    _evil(path, cache / "mark")
    os.chown(path, stranger.uid, stranger.uid)
    assert archives.find_archive() is None
    assert archives.local_archive() == path
    assert os.stat(path).st_uid == os.geteuid()
    assert archives.find_archive() == path
    assert f"{path} belongs to another user" in caplog.text


def test_link_of_another_user_is_not_followed(cache, stranger, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (cache / "windlass").symlink_to(tmp_path / "elsewhere")
    stranger.give(cache / "windlass")
    assert archives.local_archive().startswith(str(tmp_path / "user" / ".cache" / "windlass"))
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("how", ["owner", "mode"])
def test_bytecode_that_others_may_have_written_is_not_used(tmp_path, how, request, caplog):
    path = tmp_path / "import-json-00000000.bin"
    entries = {"json": ("/x/json.py", False, 0, 0, b"")}
    path.write_bytes(marshal.dumps((import_snapshot._folders(), entries)))
    assert import_snapshot._read(path) == entries
    if how == "owner":
        request.getfixturevalue("stranger").give(path)
    else:
        path.chmod(0o666)
    assert import_snapshot._read(path) == {}
    assert f"{path}" in caplog.text

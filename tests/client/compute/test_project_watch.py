"""Watch of a folder. It never misses a change, and reports changes only once."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import pytest

from windlass.client.compute.calls import project_files
from windlass.client.compute.calls.project_files import Watch

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the answer is always yes"
)


@pytest.fixture
def watch(tmp_path):
    """Return a watch that has read the folder's current state."""
    (tmp_path / "a.py").write_text("1")
    found = Watch(tmp_path)
    assert found.has_changed()
    found.follow([str(tmp_path)])
    found.has_changed()
    yield found
    found.close()


def test_nothing_changed(watch):
    assert not watch.has_changed()
    assert not watch.has_changed()


@pytest.mark.parametrize("how", ["write", "append", "new", "delete", "rename", "folder", "mode"])
def test_change_is_reported_once(watch, tmp_path, how):
    path = tmp_path / "a.py"
    if how == "write":
        path.write_text("2")
    elif how == "append":
        with path.open("a") as file:
            file.write("2")
    elif how == "new":
        (tmp_path / "b.py").touch()
    elif how == "delete":
        path.unlink()
    elif how == "rename":
        path.rename(tmp_path / "c.py")
    elif how == "folder":
        (tmp_path / "deep").mkdir()
    else:
        path.chmod(0o600)
    assert watch.has_changed()
    assert not watch.has_changed()


def test_folder_that_is_watched_later(watch, tmp_path):
    deep = tmp_path / "deep"
    deep.mkdir()
    assert watch.has_changed()
    assert watch.follow([str(tmp_path), str(deep)])
    watch.has_changed()
    (deep / "b.py").touch()
    assert watch.has_changed()


def test_too_many_folders_are_not_watched(tmp_path, monkeypatch):
    monkeypatch.setattr(project_files, "MAX_FOLDERS", 0)
    watch = Watch(tmp_path)
    watch.follow([str(tmp_path)])
    assert watch.has_changed()
    assert watch.has_changed()


def test_missing_folder(tmp_path):
    watch = Watch(tmp_path)
    watch.follow([str(tmp_path / "none")])
    assert watch.has_changed()
    watch.close()


def test_unreferenced_watch_is_released(tmp_path):
    def count() -> int:
        links = [os.readlink(e) for e in Path("/proc/self/fd").iterdir() if e.is_symlink()]
        return sum("inotify" in link for link in links)

    gc.collect()
    before = count()
    watch = Watch(tmp_path)
    watch.follow([str(tmp_path)])
    assert count() == before + 1
    del watch
    gc.collect()
    assert count() == before

"""Whether something may have changed in a folder: never missed, and not claimed without end."""

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
    """A watch that has seen the folder as it is."""
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
def test_a_change_is_told_once(watch, tmp_path, how):
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


def test_a_folder_that_is_followed_later(watch, tmp_path):
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


def test_a_folder_that_is_not_there(tmp_path):
    watch = Watch(tmp_path)
    watch.follow([str(tmp_path / "none")])
    assert watch.has_changed()
    watch.close()


def test_a_watch_that_nobody_holds_is_given_back(tmp_path):
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

"""Reloading: modules of a project are never stale, and are reloaded in the order of their imports."""

from __future__ import annotations

import importlib
import os
import py_compile
import sys

import pytest

from windlass.agent.rank import reload


@pytest.fixture
def project(tmp_path, monkeypatch):
    """Yield a folder whose modules this process imports without stale bytecode."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    before = set(sys.modules)
    reload.import_freshly([str(folder)])
    yield folder
    for name in set(sys.modules) - before:
        del sys.modules[name]
    for path in [path for path in sys.path_importer_cache if path.startswith(str(folder))]:
        del sys.path_importer_cache[path]


def test_bytecode_older_than_its_source_is_ignored(project):
    path = project / "stale_one.py"
    path.write_text("VALUE = 1")
    py_compile.compile(str(path))
    stamp = path.stat().st_mtime_ns
    path.write_text("VALUE = 2")
    os.utime(path, ns=(stamp + 1, stamp + 1_000_000_000))  # later than its bytecode
    os.utime(importlib.util.cache_from_source(str(path)), ns=(stamp, stamp))
    assert importlib.import_module("stale_one").VALUE == 2


def test_nothing_is_written_beside_the_sources(project):
    (project / "clean_one.py").write_text("VALUE = 1")
    importlib.import_module("clean_one")
    assert [path.name for path in project.iterdir()] == ["clean_one.py"]


def test_nothing_is_reloaded_when_nothing_changed(project):
    (project / "same_one.py").write_text("VALUE = object()")
    before = importlib.import_module("same_one").VALUE
    reloader = reload.Reloader(str(project))
    assert reloader.reload() == []
    assert sys.modules["same_one"].VALUE is before


def test_imported_modules_are_reloaded_first(project):
    (project / "low_one.py").write_text("VALUE = 1")
    (project / "top_one.py").write_text("from low_one import VALUE")
    top = importlib.import_module("top_one")
    (project / "low_one.py").write_text("VALUE = 22")
    assert reload.Reloader(str(project)).reload() == ["low_one", "top_one"]
    assert top.VALUE == 22


def test_deleted_modules_are_forgotten(project):
    (project / "gone_one.py").write_text("VALUE = 1")
    (project / "user_one.py").write_text("VALUE = 1")
    importlib.import_module("gone_one")
    importlib.import_module("user_one")
    (project / "gone_one.py").unlink()
    reload.Reloader(str(project)).reload()
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("gone_one")
    assert importlib.import_module("user_one").VALUE == 1


def test_other_folders_are_left_alone(project, tmp_path, monkeypatch):
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.syspath_prepend(str(other))
    (other / "other_one.py").write_text("VALUE = 1")
    importlib.import_module("other_one")
    (other / "other_one.py").write_text("VALUE = 22")
    assert reload.Reloader(str(project)).reload() == []
    assert sys.modules["other_one"].VALUE == 1


def test_object_gets_the_current_class(project):
    path = project / "class_one.py"
    path.write_text("class Thing:\n    def name(self): return 'old'\n")
    thing = importlib.import_module("class_one").Thing()
    path.write_text("class Thing:\n    def name(self): return 'newer'\n")
    reload.Reloader(str(project)).reload()
    reload.renew_class(thing, sys.modules.get)
    assert thing.name() == "newer"

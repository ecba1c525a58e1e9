"""Import snapshots: they give the same modules as a plain import, and never stale ones."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys, json
sys.path.insert(0, sys.argv[1])
from windlass.agent.forkserver import import_snapshot as snapshot
snapshot.import_module("pkg.inner")
module = sys.modules["pkg.inner"]
import inspect
print(json.dumps({
    "value": module.VALUE,
    "file": module.__file__,
    "cached": module.__cached__,
    "path": list(sys.modules["pkg"].__path__),
    "loader": type(module.__loader__).__name__,
    "source": inspect.getsource(module.answer),
    "meta_path": [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path],
}))
"""


@pytest.fixture
def project(tmp_path) -> Path:
    package = tmp_path / "project" / "pkg"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from pkg import inner\n")
    (package / "inner.py").write_text("import json.tool\nVALUE = 1\ndef answer():\n    return 42\n")
    return tmp_path / "project"


def _import(project: Path, cache: Path | None) -> dict[str, object]:
    env = {**os.environ, "WINDLASS_IMPORT_CACHE": str(cache) if cache else ""}
    ran = subprocess.run(
        [sys.executable, "-c", CODE, str(project)], env=env, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr
    found: dict[str, object] = json.loads(ran.stdout)
    return found


def test_import_from_a_snapshot_equals_a_plain_import(project, tmp_path):
    plain = _import(project, None)
    first, second = _import(project, tmp_path), _import(project, tmp_path)
    assert list(tmp_path.glob("import-pkg.inner-*.bin"))
    assert first == plain
    assert second == {**plain, "loader": "_Loader"}
    assert "_Finder" not in second["meta_path"]


def test_changed_source_is_detected(project, tmp_path):
    for value in (1, 2, 3):
        (project / "pkg" / "inner.py").write_text(
            f"VALUE = {value}\ndef answer():\n    return {'4' * value}\n"
        )
        assert _import(project, tmp_path)["value"] == value
        assert _import(project, tmp_path)["value"] == value


def test_shadowing_file_is_detected(project, tmp_path):
    _import(project, tmp_path)
    (project / "pkg.py").write_text("raise RuntimeError('a package wins over a module')\n")
    assert _import(project, tmp_path)["value"] == 1
    (project / "json").mkdir()
    (project / "json" / "__init__.py").write_text("raise RuntimeError('shadowed')\n")
    env = {**os.environ, "WINDLASS_IMPORT_CACHE": str(tmp_path)}
    code = CODE.replace("import sys, json\n", "import sys\n").replace(
        "import inspect", "raise SystemExit"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(project)], env=env, capture_output=True, text=True
    )
    assert "shadowed" in ran.stderr


@pytest.mark.parametrize("content", [b"", b"garbage", b"N"])
def test_a_damaged_snapshot_is_replaced(project, tmp_path, content):
    _import(project, tmp_path)
    [path] = tmp_path.glob("import-*.bin")
    path.write_bytes(content)
    assert _import(project, tmp_path)["loader"] == "SourceFileLoader"
    assert _import(project, tmp_path)["loader"] == "_Loader"


def test_unwritable_cache_is_harmless(project, tmp_path):
    (tmp_path / "file").touch()
    assert _import(project, tmp_path / "file")["value"] == 1


def test_snapshots_of_unused_environments_are_deleted(project, tmp_path):
    for number in range(6):
        copy = tmp_path / f"copy-{number}"
        shutil.copytree(project, copy)
        _import(copy, tmp_path)
        _import(project, tmp_path)  # this one is used every time
    found = list(tmp_path.glob("import-pkg.inner-*.bin"))
    assert len(found) == 4
    assert _import(project, tmp_path)["loader"] == "_Loader"

"""The agent's archive: one small, reproducible file without dependencies."""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from windlass.engines.archives import _sources, build_archive, find_archive, local_archive


def test_archive_is_small():
    assert len(build_archive()) <= 320 * 1024


def test_line_numbers_do_not_change():
    """Docstrings are removed, but tracebacks through the archive still have the right line numbers."""
    with zipfile.ZipFile(io.BytesIO(build_archive())) as archive:
        for name, path in _sources():
            source, shipped = Path(path).read_text(), archive.read(name).decode()
            assert _find_statements(shipped) == _find_statements(source)
            module = ast.parse(shipped)
            if not name.startswith("windlass/"):
                assert shipped == source
            elif len(module.body) > 1 and not name.endswith("__main__.py"):
                assert ast.get_docstring(module) is None


def _find_statements(source):
    """Return each statement except standalone strings, with its lines."""
    statements = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    is_text = [isinstance(getattr(node, "value", None), ast.Constant) for node in statements]
    return [
        (type(node), node.lineno, node.end_lineno)
        for node, alone in zip(statements, is_text, strict=True)
        if not (alone and isinstance(node, ast.Expr))
    ]


def test_equal_sources_give_equal_bytes():
    assert build_archive() == build_archive()
    assert build_archive(compiled=True) == build_archive(compiled=True)


def test_archive_is_built_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert find_archive() is None
    path = local_archive()
    assert find_archive() == path == local_archive()
    assert Path(path).read_bytes() == build_archive(compiled=True)
    assert Path(path).parent == tmp_path / "windlass"


def test_concurrent_builders_do_not_replace_the_archive(tmp_path, monkeypatch):
    """Agents keep reading the file they were started from, so it must not be replaced."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    code = (
        "import os; from windlass.engines.archives import local_archive; input();"
        "path = local_archive(); print(os.stat(path).st_ino)"
    )
    builders = [
        subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(8)
    ]
    for builder in builders:
        builder.stdin.write("\n")
        builder.stdin.flush()
    assert len({builder.communicate()[0] for builder in builders}) == 1
    assert [path.name for path in (tmp_path / "windlass").iterdir()] == [Path(local_archive()).name]


@pytest.fixture(params=[False, True], ids=["portable", "compiled"])
def archive(request, tmp_path):
    path = tmp_path / "agent.pyz"
    path.write_bytes(build_archive(compiled=request.param))
    return path


def test_archive_runs_without_site_packages(archive):
    answer = subprocess.run([sys.executable, "-I", "-S", archive], capture_output=True, text=True)
    assert answer.returncode == 2
    assert "python agent.pyz agent FD" in answer.stderr


def test_report_works_with_only_the_archive(archive):
    code = "import windlass as wl\nwl.report(step=1)\ntry:\n    wl.run\nexcept AttributeError as e: print(e)"
    answer = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(archive)!r})\n{code}",
        ],
        capture_output=True,
        text=True,
    )
    assert "windlass.run is available only in clients" in answer.stdout, answer.stderr

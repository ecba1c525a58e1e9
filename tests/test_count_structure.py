"""Static counts of `tools/count_structure.py`, on a small tree with known figures."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from count_structure import Counts, count, list_sources

MODULE = '''"""Docstring of
two lines."""

# a comment
import os
from sys import (
    argv,
    path,
)


def join(word):
    """Docstring."""

    import re

    text = """a string
    that is data"""
    return os.path.join(word, re.escape(text), *argv, *path)
'''


@pytest.fixture(autouse=True)
def no_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the repository of a git hook that runs the tests from git commands."""
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)


def write_tree(root: Path) -> None:
    package = root / "src" / "made_up"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "join.py").write_text(MODULE)
    (package / "notes.txt").write_text("import this\n")
    (root / "other.py").write_text("import this\n")
    (package / "removed.py").write_text("import this\n")
    for command in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *command], cwd=root, check=True)
    (package / "removed.py").unlink()
    (package / "untracked.py").write_text("import this\n")


def test_counts_of_a_small_tree(tmp_path: Path) -> None:
    write_tree(tmp_path)
    sources = list_sources(tmp_path)
    assert [path.name for path in sources] == ["__init__.py", "join.py"]
    # Statements: 2 docstrings, 3 imports, def, assignment, return. Lines: 6 of imports, def, 2 of text,
    # return.
    counts = count(sources)
    assert counts == Counts(files=2, statements=8, code_lines=10, import_lines=6)
    assert counts.import_percent == 60.0


def test_no_files_have_no_imports() -> None:
    assert count([]).import_percent == 0.0

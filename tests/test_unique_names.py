"""Unique names of modules and classes, and descriptive names of variables."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path

import windlass

ROOT = Path(windlass.__file__).parent
CASES = ROOT / "conformance" / "cases"  # tests that are part of the package
FILES = sorted(path for path in ROOT.rglob("*.py") if CASES not in path.parents)
KUBEFLOW = ROOT / "trainer" / "types.py"  # its classes have Kubeflow's names
# Folders whose files are named after what they serve.
NAMED_AFTER = ("cli/verbs", "engines/dialects", "engines/exports", "frameworks")


def find_duplicates(names: list[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def test_no_two_modules_have_one_name() -> None:
    names = [
        path.stem
        for path in FILES
        if path.parent.relative_to(ROOT).as_posix() not in NAMED_AFTER
        and path.stem not in ("__init__", "__main__")
    ]
    assert find_duplicates(names) == []


def test_no_two_classes_have_one_name() -> None:
    trees = [ast.parse(path.read_bytes()) for path in FILES if path != KUBEFLOW]
    assert (
        find_duplicates([n.name for t in trees for n in t.body if isinstance(n, ast.ClassDef)])
        == []
    )


def test_variables_say_what_was_found() -> None:
    stored = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.Name) and node.id == "found" and isinstance(node.ctx, ast.Store)
    ]
    # The JSON of `windlass doctor` uses this name for the result of a check.
    assert [place for place in stored if "observe/doctor.py" not in place] == []

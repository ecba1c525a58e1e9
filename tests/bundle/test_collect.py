from __future__ import annotations

import io
from pathlib import Path

import pytest

from windlass.bundle.archive import extract, write_archive
from windlass.bundle.collect import collect
from windlass.bundle.manifest import EMPTY, make_delta
from windlass.bundle.scan import StatCache, scan
from windlass.errors import BundleError

from .trees import git, touch


def test_from_a_project_to_a_node_and_again_after_an_edit(tmp_path: Path) -> None:
    root, node = tmp_path / "project", tmp_path / "node"
    touch(root, "train.py", "pkg/model.py", "out.log", "secrets.yaml")
    touch(root, ".gitignore", text="*.log\n")
    git(root, "init")
    cache = StatCache()

    first = collect(root, cache=cache)
    assert [warning.path for warning in first.warnings] == ["secrets.yaml"]
    out = io.BytesIO()
    write_archive(first.root, make_delta(EMPTY, first.manifest), out)
    there = extract(io.BytesIO(out.getvalue()), node, expected=first.manifest.digest)

    touch(root, "train.py", text="x = 2\n")
    (root / "pkg/model.py").rename(root / "pkg/net.py")
    second = collect(root, cache=cache)
    delta = make_delta(there, second.manifest)
    assert [entry.path for entry in delta.written] == ["pkg/net.py", "train.py"]
    assert delta.removed == ("pkg/model.py",)
    out = io.BytesIO()
    write_archive(second.root, delta, out)
    there = extract(io.BytesIO(out.getvalue()), node, base=there)
    assert there == second.manifest
    assert scan(node, [entry.path for entry in there.entries]) == second.manifest


def test_secret_is_refused_unless_allowed_by_name(tmp_path: Path) -> None:
    touch(tmp_path, "train.py", ".env")
    with pytest.raises(BundleError, match=r"\.env: looks like a secret"):
        collect(tmp_path)
    assert len(collect(tmp_path, allow=(".env",)).manifest.entries) == 2


def test_ignored_secret_is_accepted(tmp_path: Path) -> None:
    touch(tmp_path, "train.py", ".env")
    touch(tmp_path, ".windlassignore", text=".env\n")
    assert [entry.path for entry in collect(tmp_path).manifest.entries] == [
        ".windlassignore",
        "train.py",
    ]

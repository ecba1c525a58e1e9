from __future__ import annotations

import io
import os
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from windlass.bundle.archive import extract, write_archive
from windlass.bundle.manifest import EMPTY, make_delta
from windlass.bundle.scan import scan
from windlass.errors import BundleError

from .trees import File, Tree, read_tree, touch, trees, write_tree


def pack(root: Path, paths: list[str]) -> bytes:
    out = io.BytesIO()
    write_archive(root, make_delta(EMPTY, scan(root, paths)), out)
    return out.getvalue()


@settings(deadline=None, max_examples=60)
@given(trees())
def test_archive_round_trips(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as source, tempfile.TemporaryDirectory() as dest:
        write_tree(Path(source), tree)
        manifest = extract(io.BytesIO(pack(Path(source), list(tree))), Path(dest))
        assert read_tree(Path(dest)) == tree
        assert scan(Path(dest), tree) == manifest


@settings(deadline=None, max_examples=60)
@given(trees(), trees())
def test_a_delta_applied_to_the_old_gives_the_new(first: Tree, second: Tree) -> None:
    with tempfile.TemporaryDirectory() as folder:
        old_root, new_root, dest = (Path(folder, name) for name in ("old", "new", "dest"))
        write_tree(old_root, first)
        write_tree(new_root, second)
        old, new = scan(old_root, first), scan(new_root, second)
        extract(io.BytesIO(pack(old_root, list(first))), dest)
        out = io.BytesIO()
        write_archive(new_root, make_delta(old, new), out)
        assert extract(io.BytesIO(out.getvalue()), dest, base=old) == new
        assert read_tree(dest) == second


def test_the_same_content_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        touch(tmp_path, f"{name}/a.py", f"{name}/{'long' * 40}/b.py")
    os.utime(tmp_path / "two/a.py", (1, 1))
    paths = ["a.py", f"{'long' * 40}/b.py"]
    assert pack(tmp_path / "one", paths) == pack(tmp_path / "two", paths)


def test_a_delta_carries_only_what_changed(tmp_path: Path) -> None:
    touch(tmp_path, "a.py", "b.py")
    old = scan(tmp_path, ["a.py", "b.py"])
    touch(tmp_path, "b.py", text="changed")
    out = io.BytesIO()
    write_archive(tmp_path, make_delta(old, scan(tmp_path, ["a.py", "b.py"])), out)
    out.seek(0)
    with tarfile.open(fileobj=out) as tar:
        assert tar.getnames() == ["delta.json", "files/b.py"]


@pytest.mark.parametrize("text", ["other!", "longer than it was", "short", ""])
def test_a_file_that_changes_is_named(tmp_path: Path, text: str) -> None:
    touch(tmp_path, "a.py", "log.txt", text="before")
    delta = make_delta(EMPTY, scan(tmp_path, ["a.py", "log.txt"]))
    touch(tmp_path, "log.txt", text=text)
    out = io.BytesIO()
    with pytest.raises(BundleError, match=r"log\.txt changed while it was being packed") as caught:
        write_archive(tmp_path, delta, out)
    assert ".windlassignore" in caught.value.hint
    with pytest.raises(BundleError):
        extract(io.BytesIO(out.getvalue()), tmp_path / "dest")
    assert read_tree(tmp_path / "dest") == {}


def test_a_file_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    touch(tmp_path, "a.py", text="same")
    touch(tmp_path, "b.py", text="same")
    delta = make_delta(EMPTY, scan(tmp_path, ["a.py"]))
    (tmp_path / "a.py").unlink()
    (tmp_path / "a.py").symlink_to("b.py")
    with pytest.raises(BundleError, match="changed while"):
        write_archive(tmp_path, delta, io.BytesIO())


def test_large_files_are_read_in_pieces(tmp_path: Path) -> None:
    tree: Tree = {"w.bin": File(os.urandom(3 << 20) + b"tail"), "z": File(b"")}
    write_tree(tmp_path / "s", tree)
    extract(io.BytesIO(pack(tmp_path / "s", list(tree))), tmp_path / "d")
    assert read_tree(tmp_path / "d") == tree

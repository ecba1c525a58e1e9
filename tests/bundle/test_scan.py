from __future__ import annotations

import hashlib
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import given, settings

from windlass.bundle.manifest import FileEntry
from windlass.bundle.scan import StatCache, scan
from windlass.errors import BundleError

from .trees import Tree, touch, trees, write_tree


def later() -> int:
    return time.time_ns() + 10_000_000_000


def test_entries_describe_the_files(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_bytes(b"#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o6755)
    touch(tmp_path, "a.py", text="x")
    (tmp_path / "l").symlink_to("a.py")
    assert scan(tmp_path, ["run.sh", "l", "a.py"]).entries == (
        FileEntry(path="a.py", size_bytes=1, sha256=hashlib.sha256(b"x").hexdigest()),
        FileEntry(path="l", link="a.py"),
        FileEntry(
            path="run.sh",
            size_bytes=10,
            sha256=hashlib.sha256(b"#!/bin/sh\n").hexdigest(),
            executable=True,
        ),
    )


@settings(deadline=None, max_examples=40)
@given(trees())
def test_digest_is_independent_of_location_and_time(tree: Tree) -> None:
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        write_tree(Path(first), tree)
        write_tree(Path(second), dict(reversed(tree.items())))
        for path in tree:
            os.utime(Path(second, path), (1, 1), follow_symlinks=False)
        here = scan(Path(first), tree)
        assert scan(Path(second), reversed(list(tree))) == here


def test_link_is_rewritten_for_the_bundle(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/x.py", "c/y.py")
    (tmp_path / "a/abs").symlink_to(tmp_path / "c/y.py")
    (tmp_path / "a/odd").symlink_to("b/../../c/y.py")
    entries = scan(tmp_path, ["a/abs", "a/odd"]).entries
    assert [entry.link for entry in entries] == ["../c/y.py", "../c/y.py"]


def test_link_out_of_the_root_is_not_an_entry(tmp_path: Path) -> None:
    touch(tmp_path, "root/a.py")
    (tmp_path / "root/l").symlink_to("/etc")
    with pytest.raises(BundleError, match="leaves the root"):
        scan(tmp_path / "root", ["l"])


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("gone", "pipe"):
        with pytest.raises(BundleError, match=f"cannot read {name}"):
            scan(tmp_path, [name])


def test_the_cache_saves_the_read(tmp_path: Path) -> None:
    touch(tmp_path, "a.py")
    file = (tmp_path / "a.py").resolve()
    cache = StatCache(clock=later)
    cache.keep(file, file.stat(), "f" * 64, read_ns=later())
    assert scan(tmp_path, ["a.py"], cache=cache).entries[0].sha256 == "f" * 64
    assert scan(tmp_path, ["a.py"]).entries[0].sha256 != "f" * 64


def test_the_cache_gives_the_same_manifest(tmp_path: Path) -> None:
    touch(tmp_path, "a.py", "b/c.py")
    cache = StatCache(clock=later)
    first = scan(tmp_path, ["a.py", "b/c.py"], cache=cache)
    assert scan(tmp_path, ["a.py", "b/c.py"], cache=cache) == first


def test_cache_notices_a_change_with_an_old_file_time(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    touch(tmp_path, "a.py", text="one")
    os.utime(file, ns=(1, 1))
    cache = StatCache(clock=later)
    first = scan(tmp_path, ["a.py"], cache=cache)
    replacement = tmp_path / "b.py"
    touch(tmp_path, "b.py", text="two")
    os.utime(replacement, ns=(1, 1))
    replacement.replace(file)
    assert scan(tmp_path, ["a.py"], cache=cache) != first


def test_recent_files_are_never_cached(tmp_path: Path) -> None:
    touch(tmp_path, "a.py")
    file = (tmp_path / "a.py").resolve()
    cache = StatCache()
    scan(tmp_path, ["a.py"], cache=cache)
    assert cache.find(file, file.stat()) is None
    old = StatCache(clock=later)
    scan(tmp_path, ["a.py"], cache=old)
    assert old.find(file, file.stat()) is not None


def test_the_mode_is_read_even_from_the_cache(tmp_path: Path) -> None:
    touch(tmp_path, "a.py")
    cache = StatCache(clock=later)
    assert not scan(tmp_path, ["a.py"], cache=cache).entries[0].executable
    (tmp_path / "a.py").chmod(0o755)
    assert scan(tmp_path, ["a.py"], cache=cache).entries[0].executable

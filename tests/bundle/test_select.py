from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from windlass.bundle.select import select_files
from windlass.errors import BundleError

from .trees import git, touch


@pytest.fixture(params=["git", "walk"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a project in a git work tree, and the same project without git."""
    folder = tmp_path / "project"
    folder.mkdir()
    if request.param == "git":
        git(folder, "init")
    else:
        monkeypatch.setenv("PATH", str(tmp_path))
    return folder


def test_ignored_files_are_excluded(root: Path) -> None:
    touch(root, "train.py", "pkg/model.py", "out.log", "build/x", "pkg/keep.log", "pkg/tmp/y")
    touch(root, ".gitignore", text="*.log\n/build/\n")
    touch(root, "pkg/.gitignore", text="!keep.log\ntmp/\n")
    assert select_files(root) == (
        ".gitignore",
        "pkg/.gitignore",
        "pkg/keep.log",
        "pkg/model.py",
        "train.py",
    )


def test_files_that_are_never_sent(root: Path) -> None:
    touch(root, "train.py", "__pycache__/train.pyc", "a/node_modules/m/i.js", "old.pyc")
    touch(root, "env/pyvenv.cfg", "env/lib/site.py", "a/.venv/pyvenv.cfg", "a/.venv/bin/python")
    touch(root, "venv/not_one.py")
    assert select_files(root) == ("train.py", "venv/not_one.py")


def test_windlass_rules_apply_additionally(root: Path) -> None:
    touch(root, "train.py", "data/a.bin", "data/deep/b.bin", "notes.md")
    touch(root, ".windlassignore", text="data/\n*.md\n")
    assert select_files(root) == (".windlassignore", "train.py")


def test_windlass_rules_may_be_nested(root: Path) -> None:
    touch(root, "a/x.bin", "b/x.bin", "a/c/x.bin")
    touch(root, "a/.windlassignore", text="*.bin\n")
    assert select_files(root) == ("a/.windlassignore", "b/x.bin")


def test_windlass_rules_can_include_what_git_ignores(root: Path) -> None:
    touch(root, "train.py", "data/a.bin", "data/b.bin", "data/deep/c.bin", ".venv/pyvenv.cfg")
    touch(root, ".gitignore", text="data/\n.venv/\n")
    touch(root, ".windlassignore", text="!data/b.bin\n!data/deep/\n")
    assert set(select_files(root)) == {
        ".gitignore",
        ".windlassignore",
        "train.py",
        "data/b.bin",
        "data/deep/c.bin",
    }


def test_ignored_windlass_ignore_file_still_applies(root: Path) -> None:
    touch(root, "train.py", "big.bin")
    touch(root, ".gitignore", text=".windlassignore\n")
    touch(root, ".windlassignore", text="*.bin\n")
    assert select_files(root) == (".gitignore", "train.py")


def test_links_are_listed_and_not_followed(root: Path, tmp_path: Path) -> None:
    touch(tmp_path, "elsewhere/secret.py")
    touch(root, "train.py")
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (root / "nowhere").symlink_to("gone")
    assert select_files(root) == ("folder", "nowhere", "train.py")


def test_unusual_names_are_kept(root: Path) -> None:
    touch(root, "with space.py", "ünï.py", 'quo"te.py', "new\nline.py", "-dash.py")
    assert set(select_files(root)) == set(os.listdir(root)) - {".git"}


def test_no_remaining_files_is_an_error(root: Path) -> None:
    touch(root, "a.py")
    touch(root, ".windlassignore", text="*\n")
    with pytest.raises(BundleError, match="no files to send") as caught:
        select_files(root)
    assert "!train.py" in caught.value.hint


def test_an_empty_root_is_an_error(root: Path) -> None:
    with pytest.raises(BundleError, match="no files to send"):
        select_files(root)


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    folder.mkdir()
    git(folder, "init")
    return folder


def test_tracked_files_are_sent_even_if_ignored(repo: Path) -> None:
    touch(repo, "kept.log", "new.log")
    touch(repo, ".gitignore", text="*.log\n")
    git(repo, "add", "-f", "kept.log")
    assert select_files(repo) == (".gitignore", "kept.log")


def test_deleted_tracked_files_are_not_sent(repo: Path) -> None:
    touch(repo, "a.py", "b.py")
    git(repo, "add", ".")
    (repo / "a.py").unlink()
    assert select_files(repo) == ("b.py",)


def test_folder_replaced_by_a_link_is_sent_as_the_link(repo: Path) -> None:
    touch(repo, "data/x.txt", "other/x.txt")
    git(repo, "add", ".")
    (repo / "data/x.txt").unlink()
    (repo / "data").rmdir()
    (repo / "data").symlink_to("other")
    assert select_files(repo) == ("data", "other/x.txt")


def test_root_below_the_repository_sends_only_its_files(repo: Path) -> None:
    touch(repo, "top.py", "service/train.py", "service/junk.tmp")
    touch(repo, ".gitignore", text="*.tmp\n")
    assert select_files(repo / "service") == ("train.py",)


def test_a_root_that_the_repository_ignores_still_works(repo: Path) -> None:
    touch(repo, "scratch/train.py", "scratch/x.tmp")
    touch(repo, ".gitignore", text="scratch/\n")
    touch(repo, "scratch/.gitignore", text="*.tmp\n")
    assert select_files(repo / "scratch") == (".gitignore", "train.py")


def test_submodules_and_inner_repositories_are_sent(repo: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    touch(library, "lib.py", "deep/more.py", "x.tmp")
    touch(library, ".gitignore", text="*.tmp\n")
    git(library, "init")
    git(library, "add", ".")
    git(library, "commit", "-m", "first")
    git(repo, "submodule", "add", str(library), "sub")
    touch(repo, "inner/own.py", "inner/y.tmp")
    git(repo / "inner", "init")
    touch(repo, "inner/.gitignore", text="*.tmp\n")
    touch(repo, "sub/fresh.tmp")
    assert select_files(repo) == (
        ".gitmodules",
        "inner/.gitignore",
        "inner/own.py",
        "sub/.gitignore",
        "sub/deep/more.py",
        "sub/lib.py",
    )


def test_environment_of_a_git_hook_has_no_effect(
    repo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    touch(repo, "a.py", "b.tmp")
    touch(repo, ".gitignore", text="*.tmp\n")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other.git"))
    assert select_files(repo) == (".gitignore", "a.py")


def test_damaged_repository_is_read_without_git(repo: Path) -> None:
    touch(repo, "a.py", "b.tmp")
    touch(repo, ".gitignore", text="*.tmp\n")
    (repo / ".git/HEAD").unlink()
    assert select_files(repo) == (".gitignore", "a.py")


def test_missing_root(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="does not exist"):
        select_files(tmp_path / "gone")


def test_tree_may_be_deeper_than_the_recursion_limit() -> None:
    # Outside of tmp_path, because pytest's own cleanup recurses and would fail on the remains of a killed
    # run.
    folder, depth = Path(tempfile.mkdtemp()), 1200
    opened = os.open(folder, os.O_RDONLY)
    for _ in range(depth):  # step by step, because the whole path exceeds the system's limit
        os.mkdir("d", dir_fd=opened)
        opened, above = os.open("d", os.O_RDONLY, dir_fd=opened), opened
        os.close(above)
    os.close(opened)
    touch(folder, "train.py")
    try:
        assert "train.py" in select_files(folder)
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)

"""Small folder trees as plain data: functions that write and read them, and a Hypothesis strategy."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hypothesis import strategies as st


@dataclass(frozen=True)
class File:
    content: bytes = b""
    executable: bool = False


@dataclass(frozen=True)
class Link:
    target: str


Tree = dict[str, "File | Link"]


def write_tree(root: Path, tree: Tree) -> None:
    for path, node in tree.items():
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(node, Link):
            place.symlink_to(node.target)
        else:
            place.write_bytes(node.content)
            place.chmod(0o755 if node.executable else 0o644)


def read_tree(root: Path) -> Tree:
    tree: Tree = {}
    for folder, folders, files in os.walk(root):
        for name in folders + files:
            place = Path(folder, name)
            path = place.relative_to(root).as_posix()
            if place.is_symlink():
                tree[path] = Link(os.readlink(place))
            elif place.is_file():
                tree[path] = File(place.read_bytes(), bool(place.stat().st_mode & 0o100))
    return tree


def touch(root: Path, *paths: str, text: str = "x = 1\n") -> None:
    for path in paths:
        place = root / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)


def git(root: Path, *arguments: str) -> None:
    identity = (
        "-c",
        "user.name=t",
        "-c",
        "user.email=t@localhost",
        "-c",
        "init.defaultBranch=main",
    )
    allowed = ("-c", "protocol.file.allow=always")
    subprocess.run(
        ["git", *identity, *allowed, *arguments], cwd=root, check=True, capture_output=True
    )


names = st.text(st.characters(codec="utf-8", exclude_characters="/\\\0:"), min_size=1, max_size=6)
parts = st.one_of(st.sampled_from(["a", "b", "c"]), names).filter(
    lambda part: part not in (".", "..")
)
paths = st.lists(parts, min_size=1, max_size=3).map("/".join)
files = st.builds(File, content=st.binary(max_size=200), executable=st.booleans())


def _fits(path: str, tree: Tree) -> bool:
    return not any(other.startswith(path + "/") or path.startswith(other + "/") for other in tree)


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    tree: Tree = {}
    for path, node in draw(st.dictionaries(paths, files, min_size=1, max_size=8)).items():
        if _fits(path, tree):
            tree[path] = node
    for path in draw(st.lists(paths, max_size=3, unique=True)):
        if path not in tree and _fits(path, tree):
            target = draw(st.sampled_from(sorted(tree)))
            tree[path] = Link(os.path.relpath(target, os.path.dirname(path) or "."))
    return tree

"""Which files of a project a source imports: found by their names, without running anything."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from pathlib import Path

_MAX_FILES = 200
_TRAIN = ("windlass.train", "windlass.recipes")


def read_tree(path: Path) -> ast.Module | None:
    """A file as Python reads it; None where it is no Python, or not there."""
    try:
        source = path.read_bytes()
    except OSError:
        return None
    return parse(source)


def parse(source: bytes) -> ast.Module | None:
    """Source as Python reads it; None where it is no Python."""
    try:
        with warnings.catch_warnings():  # the user's own are told when the file runs
            warnings.simplefilter("ignore")
            return ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def list_imports(node: ast.AST) -> Iterator[tuple[str, int]]:
    """Each name that a statement imports, and how many folders above its file's own a relative one starts."""
    if isinstance(node, ast.Import):
        yield from ((alias.name, 0) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        parents = (node.module,) if node.module else ()
        for parts in (parents, *((*parents, alias.name) for alias in node.names)):
            if parts:
                yield ".".join(parts), node.level


def is_of_train(name: str) -> bool:
    """Whether a module is the training library's, or a recipe: both import torch."""
    return name in _TRAIN or name.startswith(tuple(f"{package}." for package in _TRAIN))


def read_imports(path: Path) -> list[tuple[str, int]]:
    """What a file imports, as `list_imports` has it; nothing where it is no Python."""
    tree = read_tree(path)
    return [pair for node in ast.walk(tree) for pair in list_imports(node)] if tree else []


def walk_imports(script: Path, root: Path) -> Iterator[tuple[str, int]]:
    """What a script imports, and what the project's files do that it imports, each as it stands there."""
    todo, seen = [script], {script}
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop()
        imported = read_imports(path)
        yield from imported
        for name, level in imported:
            new = [file for file in find_imported(name, level, path, root) if file not in seen]
            seen.update(new)
            todo += new


def find_imported(name: str, level: int, path: Path, root: Path) -> Iterator[Path]:
    """The project's files that importing `name` in the file `path` runs, packages first."""
    above = (root, *path.parents)[level : level + 1]
    for folder in above:
        parts = name.split(".")
        for depth in range(1, len(parts)):
            package = folder.joinpath(*parts[:depth], "__init__.py")
            if package.is_file():
                yield package
        yield from find_module(name, folder)


def find_module(name: str, root: Path) -> Iterator[Path]:
    """The file of a module in a folder, if it has one."""
    path = root.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            yield candidate

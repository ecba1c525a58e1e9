"""Flags behind TARGET that are both ours and the script's own: refused, since nobody can tell whose is meant.

Read from the source without running it: a flag that is written out in it, or declared by a name. Our flags
before TARGET are ours; all words after `--` are the script's.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from windlass.client.jobs.project_imports import find_imported, list_imports, read_tree
from windlass.errors import SpecError

_MAX_FILES = 50
# libraries that make flags of the names of parameters and fields
_BY_NAME = ("typer", "fire", "tyro", "jsonargparse", "simple_parsing", "HfArgumentParser")


def check_clash(late: Sequence[str], source: Path, target: str) -> None:
    """Refuse a flag of ours that stands behind the target, and that the target's source declares."""
    wanted = {word.partition("=")[0] for word in late}
    if not wanted:
        return
    clash = sorted(wanted & set(_find_flags(source)))
    if clash:
        flag = clash[0]
        raise SpecError(
            f"{flag} is a flag of Windlass and of {target} too",
            hint=f"Windlass's: windlass run {flag} ... {target}; its own: {target} -- {flag} ...",
        )


def _find_flags(source: Path) -> Iterator[str]:
    """What the source, and the files of the project that it imports, declare."""
    todo, seen = [source], {source}
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop()
        tree = read_tree(path)
        if tree is None:
            continue
        nodes = list(ast.walk(tree))
        yield from _find_texts(nodes)
        imported = [module for node in nodes for module in list_imports(node)]
        if any(part in _BY_NAME for name, _ in imported for part in name.split(".")):
            yield from _find_names(nodes)
        for name, level in imported:
            new = [f for f in find_imported(name, level, path, source.parent) if f not in seen]
            seen.update(new)
            todo += new


def _find_texts(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("-"):
                yield from node.value.partition("=")[0].split("/")
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called.startswith("DEFINE_"):
                yield f"--{node.args[0].value!s}"


def _find_names(nodes: Sequence[ast.AST]) -> Iterator[str]:
    for node in nodes:
        name = ""
        if isinstance(node, ast.arg):
            name = node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name = node.target.id
        if name:
            yield f"--{name}"
            yield f"--{name.replace('_', '-')}"

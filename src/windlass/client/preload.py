"""What the fork server imports ahead: torch, when the work will want it.

Read from the source without running it: the imports of the script, and of the project's files that it
imports. Nothing but torch is preloaded unasked, since other libraries read a rank's variables when they load.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

_MAX_FILES = 200


def uses_torch(script: Path) -> bool:
    """Whether a script, or a file of the project that it imports, leads to torch."""
    todo, seen = [script], {script}
    while todo and len(seen) < _MAX_FILES:
        imported = list(_imports(todo.pop()))
        tops = dict.fromkeys(name.partition(".")[0] for name in imported)
        if "torch" in tops or any(_needs_torch(top, script.parent) for top in tops):
            return True
        for name in imported:
            for path in _find_files(name, script.parent):
                if path not in seen:
                    seen.add(path)
                    todo.append(path)
    return False


def _imports(path: Path) -> Iterator[str]:
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _find_files(name: str, root: Path) -> Iterator[Path]:
    path = root.joinpath(*name.split("."))
    for candidate in (path.with_suffix(".py"), path / "__init__.py"):
        if candidate.is_file():
            yield candidate


def _needs_torch(name: str, root: Path) -> bool:
    """Whether an installed package of that name asks for torch."""
    if name in sys.stdlib_module_names or name == "windlass" or any(_find_files(name, root)):
        return False
    import importlib.metadata  # slow to import, and seldom needed

    try:
        requires = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(
        line.partition(" ")[0].partition(">")[0].partition("=")[0] == "torch" for line in requires
    )

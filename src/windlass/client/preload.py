"""What the fork server imports ahead: torch, when the work will want it.

Read from the source without running it: the imports of the script, and of the project's files that it
imports. Nothing but torch is preloaded unasked, since other libraries read a rank's variables when they load.
Nor is torch's compiler, though wrapping a model for data-parallel training imports it: where it was imported
ahead, such a model is freed as its function returns, which deadlocks with gloo's threads every few runs.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_MAX_FILES = 200


TORCH = ("torch",)

_IS_TORCH = re.compile(r"torch(?![\w.-])", re.IGNORECASE)  # and not torchvision, torch-geometric


def choose_preload(script: Path) -> tuple[str, ...]:
    """What to import ahead for a script, judged by it and by the files of the project that it imports."""
    todo, seen = [script], {script}
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop()
        imported = list(_imports(_read(path)))
        tops = dict.fromkeys(name.partition(".")[0] for name, level in imported if level == 0)
        if "torch" in tops or any(_needs_torch(top, script.parent) for top in tops):
            return TORCH
        for name, level in imported:
            for root in (script.parent, *path.parents)[level : level + 1]:
                new = [found for found in _find_files(name, root) if found not in seen]
                seen.update(new)
                todo += new
    return ()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _imports(source: bytes) -> Iterator[tuple[str, int]]:
    """Each name that is imported, and how many folders above its file's own a relative one starts."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parents = (node.module,) if node.module else ()
            for names in (parents, *((*parents, alias.name) for alias in node.names)):
                if names:
                    yield ".".join(names), node.level


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
    return any(_IS_TORCH.match(line) for line in requires)

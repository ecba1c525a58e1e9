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
from pathlib import Path

from windlass.client.jobs.project_imports import find_imported, find_module, list_imports, parse

_MAX_FILES = 200


TORCH = ("torch",)

_IS_TORCH = re.compile(r"torch(?![\w.-])", re.IGNORECASE)  # and not torchvision, torch-geometric


def choose_preload(script: Path, root: Path | None = None) -> tuple[str, ...]:
    """What to import ahead for a script, judged by it and by the files of the project that it imports.

    `root` is where absolute imports start, the script's folder unless told.
    """
    root = root or script.parent
    todo, seen = [script], {script}
    while todo and len(seen) < _MAX_FILES:
        path = todo.pop()
        tree = parse(path.read_bytes() if path.is_file() else b"")
        imported = [pair for node in ast.walk(tree) for pair in list_imports(node)] if tree else []
        tops = dict.fromkeys(name.partition(".")[0] for name, level in imported if level == 0)
        if "torch" in tops or any(_needs_torch(top, root) for top in tops):
            return TORCH
        for name, level in imported:
            new = [file for file in find_imported(name, level, path, root) if file not in seen]
            seen.update(new)
            todo += new
    return ()


def _needs_torch(name: str, root: Path) -> bool:
    """Whether an installed package of that name asks for torch."""
    if name in sys.stdlib_module_names or name == "windlass" or any(find_module(name, root)):
        return False
    import importlib.metadata  # slow to import, and seldom needed

    try:
        requires = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return False
    return any(_IS_TORCH.match(line) for line in requires)

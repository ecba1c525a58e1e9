"""Functions and classes of the script that runs here (`__main__`): whether ranks could import them."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path
from typing import Any

from windlass.agent.rank.by_file import ByFile

GUARD = 'put what only a run should do under if __name__ == "__main__":'


def name_by_file(target: Any, root: Path) -> ByFile | None:
    """The target as its script has it; None where ranks could not import that without running it."""
    thing = inspect.unwrap(target)
    name = getattr(thing, "__qualname__", "<locals>")
    file = getattr(sys.modules["__main__"], "__file__", None)
    if getattr(thing, "__module__", None) != "__main__" or "<" in name or file is None:
        return None
    path = Path(file).resolve()
    is_module = path.suffix == ".py" and path.stem.isidentifier() and path.is_relative_to(root)
    if not is_module or not _is_guarded(path):
        return None
    # what comes back is of the types that this process knows, as the script's own
    sys.modules.setdefault(path.stem, sys.modules["__main__"])
    return ByFile(path.stem, name)


def _is_guarded(path: Path) -> bool:
    """Whether it has a main part that an import leaves alone."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    tests = [ast.unparse(node.test) for node in tree.body if isinstance(node, ast.If)]
    return any("__name__" in test and "__main__" in test for test in tests)

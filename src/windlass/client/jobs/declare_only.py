"""Scripts that only declare apps: running one would start nothing, which is told before it is tried.

Read from the source; runs nothing.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from pathlib import Path

from windlass.client.jobs.project_imports import read_tree
from windlass.errors import SpecError

_QUIET = (
    *(ast.Import, ast.ImportFrom, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Assign, ast.AnnAssign, ast.Pass),
)


def check_script(source: Path | None, words: Sequence[str]) -> None:
    """Refuse a script that makes apps and does nothing with them, and say what starts them."""
    if source is None or not only_declares(source):
        return
    raise SpecError(
        f"{source.name} only declares app(...), which starts nothing by itself",
        hint=f"windlass deploy {words[0]} starts it; app(...).deploy() does so from the script",
    )


def only_declares(source: Path) -> bool:
    """Whether running a script would make apps, and start none of them."""
    tree = read_tree(source)
    return tree is not None and _has_apps_alone(tree)


def _has_apps_alone(tree: ast.Module) -> bool:
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    if not any(_is_app(call) for call in calls) or not _imports_windlass(tree):
        return False
    if any(getattr(call.func, "attr", "") == "deploy" for call in calls):
        return False
    return all(
        isinstance(node, _QUIET) or (isinstance(node, ast.Expr) and _is_quiet(node.value))
        for node in tree.body
    )


def _is_quiet(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) or (isinstance(value, ast.Call) and _is_app(value))


def _is_app(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")) == "app"


def _imports_windlass(tree: ast.Module) -> bool:
    return any(
        (isinstance(node, ast.Import) and any(a.name == "windlass" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and node.module == "windlass")
        for node in ast.walk(tree)
    )

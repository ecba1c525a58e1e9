"""A function's source, found in a file that is never imported.

What stops a run here (no file, no function, a mistake in the file) is told with the nearest right
name. Called by cli.signature; knows nothing of parameters or flags.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

from windlass.errors import SpecError
from windlass.near_names import did_you_mean

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def read_function(path: Path, function: str) -> ast.FunctionDef:
    """The last top-level `def` of that name in the file; SpecError says why there is none."""
    tree = _parse(path)
    functions = {n.name: n for n in _top_level(tree.body) if isinstance(n, _FUNCTIONS)}
    node = functions.get(function)
    if node is None:
        raise _make_missing(tree, path, function, sorted(functions))
    if isinstance(node, ast.AsyncFunctionDef):
        raise SpecError(
            f"{function} in {path} is async, and ranks run plain functions",
            hint=f"run a plain function that says `asyncio.run({function}(...))`",
        )
    return node


def _parse(path: Path) -> ast.Module:
    try:
        # The user's own warnings (an odd escape in a string) are told when the file runs.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), filename=str(path))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SpecError(f"there is no file {path}", hint=_nearest_file(path)) from error
    except OSError as error:
        raise SpecError(
            f"cannot read {path}: {error.strerror}", hint="name a Python file: train.py::train"
        ) from error
    except SyntaxError as error:
        version = ".".join(map(str, sys.version_info[:2]))
        raise SpecError(
            f"{path}, line {error.lineno or 1}: {error.msg}",
            hint=f"correct that line; it is read with Python {version}",
        ) from error
    except ValueError as error:
        raise SpecError(f"{path} is not Python: {error}", hint="name a Python file") from error


def _nearest_file(path: Path) -> str:
    if not path.parent.is_dir():
        return f"there is no folder {path.parent} either"
    files = sorted(other.name for other in path.parent.glob("*.py"))
    listed = f"Python files there: {', '.join(files[:8])}" if files else "no Python file is there"
    return did_you_mean(path.name, files, listed, show=path.parent.joinpath)


def _top_level(body: Sequence[ast.AST]) -> Iterator[ast.AST]:
    """Every statement that runs on import, also those under `if`, `try` and the like."""
    for node in body:
        yield node
        if not isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            for block in ("body", "handlers", "orelse", "finalbody", "cases"):
                yield from _top_level(getattr(node, block, ()))


def _make_missing(
    tree: ast.Module, path: Path, function: str, functions: Sequence[str]
) -> SpecError:
    wrap = "write a top-level `def` that calls it, and run that"
    if "." in function:
        return SpecError(f"{function} is not a top-level function of {path}", hint=wrap)
    if function in _bound_names(tree):
        return SpecError(f"{function} in {path} is not written with `def`", hint=wrap)
    for node in ast.walk(tree):
        if isinstance(node, _FUNCTIONS) and node.name == function:
            where = f"line {node.lineno} of {path}"
            return SpecError(f"{function} ({where}) is inside a function or a class", hint=wrap)
    listed = f"functions there: {', '.join(functions)}" if functions else "no function is there"
    hint = did_you_mean(function, functions, listed, show=repr)
    return SpecError(f"there is no function {function!r} in {path}", hint=hint)


def _bound_names(tree: ast.Module) -> set[str]:
    names: set[str] = set()
    for node in _top_level(tree.body):
        if isinstance(node, ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names.update(alias.asname or alias.name for alias in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names.update(target.id for target in targets if isinstance(target, ast.Name))
    return names

"""Python source without what only people and checkers read: comments, docstrings, functions' annotations.

The archive travels in a Secret, so every kilobyte counts; a traceback through it must still name the right
lines, so they stay. Annotations of records stay too, since those are read when they run. Pure.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def strip_source(data: bytes, *, keeps_notice: bool = False) -> bytes:
    """The same program, with empty lines for what was taken out; the module's docstring may be a notice."""
    text = data.decode()
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    tree = ast.parse(text)
    for row, start, end in sorted(_find_annotations(tree, lines), reverse=True):
        line = lines[row - 1].encode()
        lines[row - 1] = (line[:start] + line[end:]).decode()
    for node in ast.walk(tree):
        if node is tree and keeps_notice:
            continue
        if isinstance(node, _HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            is_alone = len(node.body) == 1 and not isinstance(node, ast.Module)
            _blank(lines, first, "..." if is_alone else "")
    return "".join(lines).encode()


def _find_annotations(tree: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, int]]:
    """Where functions say what they take and give: line, first and last byte. Those of one line only."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation is not None:
            end = node.annotation
            if node.lineno == end.end_lineno:
                start = node.col_offset + len(node.arg.encode())
                yield node.lineno, start, end.end_col_offset or start
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns is not None:
            given = node.returns
            start = lines[given.lineno - 1].encode().rfind(b"->", 0, given.col_offset)
            if given.lineno == given.end_lineno and start >= 0:
                yield given.lineno, start, given.end_col_offset or start


def _blank(lines: list[str], node: ast.stmt, instead: str) -> None:
    """Empty the lines of a statement that has them for itself."""
    last = node.end_lineno or node.lineno
    before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    if before.strip():  # on the line of its def
        return
    lines[node.lineno - 1 : last] = ["\n"] * (last - node.lineno + 1)
    if instead:
        lines[node.lineno - 1] = f"{before}{instead}\n"

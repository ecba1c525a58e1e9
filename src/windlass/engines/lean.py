"""Python source without what only people read: comments and docstrings. The line numbers stay.

The archive travels in a Secret, so every kilobyte counts; a traceback through it must still name the right
lines. Pure.
"""

from __future__ import annotations

import ast
import io
import tokenize

_HAVE_DOCSTRINGS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def strip_source(data: bytes) -> bytes:
    """The same program, with empty lines for what was taken out."""
    text = data.decode()
    lines = text.splitlines(keepends=True)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, _HAVE_DOCSTRINGS) and ast.get_docstring(node, clean=False) is not None:
            first = node.body[0]
            is_alone = len(node.body) == 1 and not isinstance(node, ast.Module)
            _blank(lines, first, "..." if is_alone else "")
    return "".join(lines).encode()


def _blank(lines: list[str], node: ast.stmt, instead: str) -> None:
    """Empty the lines of a statement that has them for itself."""
    last = node.end_lineno or node.lineno
    before = lines[node.lineno - 1].encode()[: node.col_offset].decode()
    if before.strip():  # on the line of its def
        return
    lines[node.lineno - 1 : last] = ["\n"] * (last - node.lineno + 1)
    if instead:
        lines[node.lineno - 1] = f"{before}{instead}\n"

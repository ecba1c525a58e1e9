"""Source without comments, docstrings and annotations: the same program, on the same lines."""

from __future__ import annotations

import ast

from windlass.engines.pyz import _sources
from windlass.engines.strip_source import strip_source

SOURCE = '''"""A module."""  # and a word

import os  # why


def f(x):
    """Says
    nothing."""
    # alone on its line
    return "# not a comment", x  # is one


class Empty(Exception):
    """Only this."""


def é(): """on its line"""


async def g():
    text = """
    # not a comment
    """
    return text
'''


def test_the_same_program_on_the_same_lines():
    lean = strip_source(SOURCE.encode()).decode()
    assert len(lean.splitlines()) == len(SOURCE.splitlines())
    for gone in ("A module", "a word", "why", "Says", "alone on", "is one", "Only this"):
        assert gone not in lean
    found: dict = {}
    exec(compile(lean, "lean.py", "exec"), found)
    assert found["f"](1) == ("# not a comment", 1)
    assert found["f"].__code__.co_firstlineno == SOURCE.splitlines().index("def f(x):") + 1
    assert issubclass(found["Empty"], Exception)
    assert "# not a comment\n" in lean


def test_functions_lose_their_annotations_and_records_keep_theirs():
    source = (
        "class A:\n    x: int = 1\n\n"
        "    def f(self, a: dict[str, int], *b: str, c: int = 2) -> str:\n"
        "        d: int = c\n        return a, b, d\n"
    )
    lean = strip_source(source.encode()).decode()
    assert "def f(self, a, *b, c = 2) :" in lean
    assert "x: int = 1" in lean
    found: dict = {}
    exec(compile(lean, "lean.py", "exec"), found)
    assert found["A"]().f({}, "y", c=3) == ({}, ("y",), 3)


def test_every_file_stays_what_it_is():
    for name, path in _sources():
        if not name.endswith(".py"):
            continue
        with open(path, "rb") as file:
            data = file.read()
        lean = strip_source(data)
        assert lean.count(b"\n") == data.count(b"\n")
        assert _bare(lean) == _bare(data), name


def test_a_notice_stays():
    source = b'"""Copyright."""\n\n\ndef f():\n    """Gone."""\n    return 1\n'
    assert strip_source(source, keeps_notice=True) == source.replace(b'    """Gone."""', b"")


def _bare(source: bytes) -> str:
    """The tree, with each body less its docstring or its dots, and functions without annotations."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.returns = None
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [one for one in body if not _says_nothing(one)]
    return ast.dump(tree, include_attributes=False)


def _says_nothing(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)

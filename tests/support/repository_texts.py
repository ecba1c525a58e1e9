"""Names of the files of this repository, and the prose in Python sources."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def list_files() -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        pytest.skip("needs a checkout: git lists no files here")
    return [name for name in ran.stdout.splitlines() if (ROOT / name).exists()]


def find_prose(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, BLOCKS) and (text := ast.get_docstring(node)):
            yield text
    yield from re.findall(r"(?:^|\s)# .*", source)

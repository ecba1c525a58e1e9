"""Import alias of pages and examples. It is `wl`, except on pages for users of Kubetorch."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted(
    path
    for folder in ("docs", "examples", "benchmarks", "src")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in (".md", ".py") and path.name != "from-kubetorch.md"
)


@pytest.mark.parametrize("path", [ROOT / "README.md", *FILES], ids=lambda path: path.name)
def test_alias_is_wl(path):
    text = path.read_text()
    assert not re.search(r"\bkt\b", text)
    assert set(re.findall(r"import windlass as (\w+)", text)) <= {"wl"}

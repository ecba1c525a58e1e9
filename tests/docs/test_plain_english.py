"""Layout and words of prose: pages, docstrings, comments, and the texts that users see.

Pages are wrapped at 100 characters. A paragraph has at most five sentences, and a table cell at most
fifteen words. Code blocks, links and generated pages are exempt from the layout. Banned words are banned
in all prose, and in the strings of the source. ruff checks that first lines are imperative.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from repository_texts import find_prose, list_files

ROOT = Path(__file__).parents[2]
BANNED = re.compile(
    r"\b(?:nobody|whoever|whomever|somebody|so-manieth|untold|is told|are told|was told|is said|goes on|"
    r"went on|for good|says so|be it|be they|anew|past answering)\b",
    re.IGNORECASE,
)
BAD_STARTS = re.compile(r"(?:What|Whether|That|Of|Where|How|Those|Who|Whose|Which|The same)\b")
GENERATED = ("docs/reference/", "docs/protocol.md")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^\s*(?:[-*]|\d+\.)\s", re.MULTILINE)
SENTENCE_END = re.compile(r"[.!?](?:\*\*|`|\))?\s+(?=[A-Z`*\[])")
MAX_LINE, MAX_SENTENCES, MAX_WORDS = 100, 5, 15


def _find_texts() -> dict[str, str]:
    texts = {}
    for name in list_files():
        if name.endswith(".md"):
            texts[name] = FENCE.sub("", (ROOT / name).read_text())
        elif name.endswith(".py") and name != "tests/docs/test_plain_english.py":
            texts[name] = "\n".join(find_prose((ROOT / name).read_text()))
    return texts


def _find_strings(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value


def _find_pages() -> list[str]:
    names = (
        n for n in list_files() if n.endswith(".md") and (n + "/").startswith(("docs/", "README"))
    )
    return sorted(n for n in names if not n.startswith(GENERATED))


def test_no_banned_words() -> None:
    hits = {
        (name, hit)
        for name, text in _find_texts().items()
        for hit in BANNED.findall(" ".join(re.sub(r"`[^`\n]*`", "", text).split()))
    }
    assert not sorted(hits)


def test_no_banned_words_in_texts_for_users() -> None:
    hits = {
        (name, hit)
        for name in list_files()
        if name.startswith("src/") and name.endswith(".py")
        for text in _find_strings((ROOT / name).read_text())
        for hit in BANNED.findall(text)
    }
    assert not sorted(hits)


def test_docstrings_do_not_start_with_a_pronoun() -> None:
    blocks = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    bad = [
        f"{name}:{getattr(node, 'lineno', 1)}: {text.splitlines()[0]}"
        for name in list_files()
        if name.endswith(".py")
        for node in ast.walk(ast.parse((ROOT / name).read_text()))
        if isinstance(node, blocks) and (text := ast.get_docstring(node)) and BAD_STARTS.match(text)
    ]
    assert not bad


@pytest.mark.parametrize("page", _find_pages())
def test_layout(page: str) -> None:
    text = FENCE.sub("", (ROOT / page).read_text())
    rows = [line for line in text.splitlines() if line.startswith("|")]
    prose = [line for line in text.splitlines() if not line.startswith("|")]
    wide = [line for line in prose if len(line) > MAX_LINE and "](" not in line]
    cells = [cell.strip() for row in rows for cell in re.split(r"(?<!\\)\|", row)]
    full = [cell for cell in cells if len(cell.split()) > MAX_WORDS]
    blocks = (b for block in "\n".join(prose).split("\n\n") for b in ITEM.split(block))
    long = [b for b in blocks if len(SENTENCE_END.findall(" ".join(b.split()))) >= MAX_SENTENCES]
    assert (wide, full, long) == ([], [], [])

from __future__ import annotations

import re
from pathlib import Path

import pytest

from windlass.near_names import did_you_mean, nearest

KNOWN = ("nodes", "procs", "memory")
SOURCES = sorted((Path(__file__).parents[1] / "src").rglob("*.py"))


@pytest.mark.parametrize(
    ("name", "near"),
    [("nods", "nodes"), ("memori", "memory"), ("nodes", "nodes"), ("zzz", ""), ("", "")],
)
def test_the_nearest_name(name: str, near: str) -> None:
    assert nearest(name, KNOWN) == near
    assert nearest(name, ()) == ""


def test_similarity_is_configurable() -> None:
    assert nearest("prosody", KNOWN, alike=0.5) == "procs"
    assert nearest("prosody", KNOWN, alike=0.8) == ""


def test_hint_names_the_nearest_in_its_spelling() -> None:
    assert did_you_mean("nods", KNOWN) == "did you mean nodes?"
    assert did_you_mean("nods", KNOWN, show=repr) == "did you mean 'nodes'?"
    assert did_you_mean("a.py", ["b.py"], show=Path("sub").joinpath) == "did you mean sub/b.py?"


def test_hint_without_a_similar_name() -> None:
    assert did_you_mean("zzz", iter(KNOWN)) == "available: nodes, procs, memory"
    assert did_you_mean("zzz", KNOWN, "see --help") == "see --help"


def test_no_other_module_compares_names() -> None:
    guessing = re.compile(r"\bdifflib\b|get_close_matches")
    found = [path.name for path in SOURCES if guessing.search(path.read_text())]
    assert found == ["near_names.py"]

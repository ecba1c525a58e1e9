from __future__ import annotations

import pytest

from windlass.bundle.manifest import link_fault, parents_of, path_fault, shown


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("../x", "`..`"),
        ("a/../../x", "`..`"),
        ("a//b", "empty"),
        ("a/", "empty"),
        ("./a", "`.`"),
        ("C:/x", "drive"),
        ("c:x", "drive"),
        ("a\\..\\b", "backslash"),
        ("a\0b", "NUL"),
        ("a\udc80", "UTF-8"),
    ],
)
def test_path_faults(path: str, word: str) -> None:
    assert word in (path_fault(path) or "")


@pytest.mark.parametrize("path", ["a", "a/b.py", "..a", "a..", "...", "ünï/ço dé", "-rf", "a\nb"])
def test_good_paths(path: str) -> None:
    assert path_fault(path) is None


@pytest.mark.parametrize(
    ("path", "target", "word"),
    [
        ("l", "..", "leaves"),
        ("a/l", "../../x", "leaves"),
        ("a/l", "./.././../x", "leaves"),
        ("l", "/etc", "absolute"),
        ("l", "x/..", "after a name"),
        ("a/l", "../b/../../x", "after a name"),
        ("l", "", "empty"),
    ],
)
def test_link_faults(path: str, target: str, word: str) -> None:
    assert word in (link_fault(path, target) or "")


@pytest.mark.parametrize(
    ("path", "target"),
    [("l", "x"), ("l", "."), ("a/l", ".."), ("a/b/l", "../../c/d/"), ("l", "./x")],
)
def test_good_links(path: str, target: str) -> None:
    assert link_fault(path, target) is None


def test_parents_are_listed_nearest_first() -> None:
    assert parents_of("a/b/c.py") == ("a/b", "a")
    assert parents_of("c.py") == ()


def test_shown_hides_control_characters() -> None:
    assert shown("é\x1b[2J\n\udc80") == "é\\x1b[2J\\n\\udc80"

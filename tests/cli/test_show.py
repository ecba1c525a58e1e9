"""Output of tables, pairs and JSON."""

from __future__ import annotations

import json
import math
from datetime import datetime, timezone

import pytest

from windlass.cli.show import print_json, print_pairs, print_table, render_age, shorten
from windlass.cli.verbs.logs import read_since
from windlass.client.terminal import one_line
from windlass.errors import SpecError


def test_columns_are_aligned_with_wide_letters(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A", "B"), [("名前", "x"), ("e\u0301", "y\n z"), ("plain", "\x1b[2Jw")])
    assert capsys.readouterr().out == "A      B\n名前   x\ne\u0301      y z\nplain  w\n"


def test_empty_table_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("A",), [])
    assert capsys.readouterr().out == ""


def test_color_only_adds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    print_table(("PHASE",), [("failed",)])
    assert capsys.readouterr().out == "PHASE\nfailed\n"
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table(("PHASE",), [("failed",)])
    assert "\x1b[31mfailed\x1b[0m" in capsys.readouterr().out
    monkeypatch.setenv("NO_COLOR", "1")
    print_table(("PHASE",), [("failed",)])
    assert capsys.readouterr().out == "PHASE\nfailed\n"


def test_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    print_pairs([("a", "one"), ("long", "two\nthree"), ("none", "")])
    assert capsys.readouterr().out == "a     one\nlong  two\n      three\n"


def test_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"x": [math.nan, math.inf, "\x1b\x9b", "☃"]})
    text = capsys.readouterr().out
    assert json.loads(text) == {"x": ["nan", "inf", "\x1b\x9b", "☃"]}
    assert text.isascii()
    assert "\x1b" not in text


def test_words() -> None:
    assert one_line(" a\n\tb\x07 ") == "a b"
    assert shorten("abcdef", 4) == "abc…"
    assert shorten("abcd", 4) == "abcd"


@pytest.mark.parametrize(
    ("ago_s", "text"), [(1, "1s"), (119, "119s"), (150, "2m"), (3 * 86400, "3d")]
)
def test_ages(ago_s: float, text: str) -> None:
    now_s = datetime.now(tz=timezone.utc).timestamp()
    assert render_age(now_s - ago_s - 0.1) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5m", 999_999_700.0),
        ("90", 999_999_910.0),
        ("1700000000", 1_700_000_000.0),
        ("1970-01-01T00:01:00Z", 60.0),
        ("1970-01-01T01:00:00+01:00", 0.0),
    ],
)
def test_since(text: str, expected: float) -> None:
    assert read_since(text, now_s=1_000_000_000.0) == expected


def test_since_of_nonsense() -> None:
    with pytest.raises(SpecError, match="must be a duration or a point"):
        read_since("yesterday", now_s=0.0)

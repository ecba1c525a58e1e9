"""Durations in text: parsing, clear refusals, and round trips."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.errors import SpecError
from windlass.settings import read_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (90, 90),
        (0.5, 0.5),
        ("90", 90),
        ("1.5", 1.5),
        ("1e3", 1000),
        ("90s", 90),
        ("5m", 300),
        ("1h30m", 5400),
        (" 1h 30m ", 5400),
        ("2d", 172800),
        ("1.5h", 5400),
        ("250ms", 0.25),
        ("1d2h3m4s5ms", 93784.005),
        ("0", 0),
    ],
)
def test_durations(text, seconds):
    assert read_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "s", "5x", "-1", "-5m", "30m1h", "1h1h", "5 m", "1h,30m", "nan", "inf", "1e999"),
        *("9" * 400 + "s", True, -1, float("nan"), float("inf"), 10**400),
    ],
)
def test_refused_durations(text):
    with pytest.raises(SpecError, match="invalid duration"):
        read_duration(text)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_durations_round_trip(days, hours, minutes, seconds):
    parts = {"d": days, "h": hours, "m": minutes, "s": seconds}
    text = "".join(f"{n}{unit}" for unit, n in parts.items() if n) or "0s"
    assert read_duration(text) == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


@given(st.floats(min_value=0, allow_infinity=False))
def test_plain_seconds_round_trip(seconds):
    assert read_duration(seconds) == read_duration(repr(seconds)) == seconds


@given(st.text())
def test_any_text_is_a_duration_or_a_clear_error(text):
    with contextlib.suppress(SpecError):
        assert read_duration(text) >= 0

"""Sanitized text for terminals. Output of ranks can do nothing but print."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windlass.client.terminal import clean, is_terminal, paint, rank_color, wants_color

nasty = st.lists(
    st.sampled_from(
        ["\x1b", "\x1b[", "\x1b]", "\x1bP", "\x1b\\", "\x07", "\x9b", "\x9d", "0;", "31", "m", "H", "2J",
         "text", "\r", "\x00", "\n", "\t", "é", "[", "]", ";", "?25l", "\x7f", "\x85"]
    ) | st.text(max_size=3),
    max_size=12,
).map("".join)  # fmt: skip
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@settings(deadline=None, max_examples=500)
@given(nasty)
@example("\x1b\x1b[31m[2J")
@example("\x1b]0;t\x1b\x1b[2J")
def test_without_color_no_control_character_remains(text):
    assert not CONTROLS.search(clean(text, color=False))


@settings(deadline=None, max_examples=500)
@given(nasty)
def test_with_color_only_colors_remain_and_are_reset(text):
    cleaned = clean(text, color=True)
    assert not CONTROLS.search(re.sub(r"\x1b\[[0-9;:]*m", "", cleaned))
    if "\x1b" in cleaned:
        assert cleaned.endswith("\x1b[0m")


@settings(deadline=None)
@given(st.text(st.characters(exclude_categories=["Cc", "Cs"])))
def test_plain_text_is_kept(text):
    assert clean(text, color=False) == clean(text, color=True) == text


@pytest.mark.parametrize(
    ("text", "plain", "colored"),
    [
        ("\x1b[31mred\x1b[0m", "red", "\x1b[31mred\x1b[0m\x1b[0m"),
        ("\x1b[38;5;9mx", "x", "\x1b[38;5;9mx\x1b[0m"),
        ("\x1b[38:2::1:2:3mx", "x", "\x1b[38:2::1:2:3mx\x1b[0m"),
        ("\x1b]0;my title\x07text", "text", "text"),
        ("\x1b]0;my title\x1b\\text", "text", "text"),
        ("\x1b]52;c;c3RlYWw=\x07text", "text", "text"),
        ("\x1b]8;;http://evil\x07link\x1b]8;;\x07", "link", "link"),
        ("\x1b[2J\x1b[Hgone", "gone", "gone"),
        ("\x1b[?25lhidden", "hidden", "hidden"),
        ("\x1bPq#0\x1b\\after", "after", "after"),
        ("\x1bcreset", "reset", "reset"),
        ("\x1b(0lines", "lines", "lines"),
        ("bell\x07back\x08nul\x00", "bellbacknul", "bellbacknul"),
        ("8-bit \x9b2J", "8-bit 2J", "8-bit 2J"),
        ("tab\tand\nline", "tab\tand\nline", "tab\tand\nline"),
        ("over\rwritten", "overwritten", "overwritten"),
        ("cut \x1b[31", "cut ", "cut "),
        ("cut \x1b", "cut ", "cut "),
    ],
)
def test_sequences(text, plain, colored):
    assert clean(text, color=False) == plain
    assert clean(text, color=True) == colored


def test_paint():
    assert paint("x", 31, color=True) == "\x1b[31mx\x1b[0m"
    assert paint("x", 31, color=False) == "x"
    assert len({rank_color(rank) for rank in range(10)}) == 10
    assert rank_color(0) == rank_color(10)


class Tty(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(
    ("env", "stream", "wanted"),
    [
        ({}, Tty(), True),
        ({}, io.StringIO(), False),
        ({"NO_COLOR": "1"}, Tty(), False),
        ({"NO_COLOR": ""}, Tty(), True),
        ({"TERM": "dumb"}, Tty(), False),
        ({"FORCE_COLOR": "1"}, io.StringIO(), True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, io.StringIO(), False),
    ],
)
def test_color_decision(monkeypatch, env, stream, wanted):
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert wants_color(stream) is wanted


def test_closed_stream_is_not_a_terminal():
    stream = io.StringIO()
    stream.close()
    assert not is_terminal(stream)
    assert not is_terminal(object())

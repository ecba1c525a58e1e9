"""Text for terminals: what a rank prints must not be able to do more than print.

Colours (SGR) may stay; every other escape sequence, and every control character but tab and newline, is
taken out.
"""

from __future__ import annotations

import os
import re
import sys
import textwrap
from typing import TextIO

_SGR = re.compile(r"\x1b\[[0-9;:]*m")
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC: titles, clipboards, links
    r"|\x1b[PX^_][^\x1b]*(?:\x1b\\)?"  # DCS, SOS, PM, APC
    r"|\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: cursor, screen
    r"|\x1b[ -/]*[0-~]?"  # all others
)
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_RESET = "\x1b[0m"
_PALETTE = (36, 33, 35, 32, 34, 96, 93, 95, 92, 94)


def clean(text: str, *, colour: bool) -> str:
    """The text without anything that moves cursors, sets titles or rings bells."""
    if "\x1b" in text:
        kept = _ESCAPES.sub(lambda m: m[0] if colour and _SGR.fullmatch(m[0]) else "", text)
        text = kept + _RESET if "\x1b" in kept else kept
    return _CONTROLS.sub(lambda m: m[0] if m[0] == "\x1b" else "", text)


def one_line(text: str) -> str:
    """Text that somebody else wrote as one harmless line."""
    return clean(" ".join(text.split()), colour=False)


def say(text: str) -> None:
    """One line on stderr; stdout is for data."""
    sys.stderr.write(f"windlass: {clean(text, colour=False)}\n")
    sys.stderr.flush()


def paint(text: str, code: int | str, *, colour: bool) -> str:
    """The text in a colour, where colours are wanted."""
    return f"\x1b[{code}m{text}{_RESET}" if colour else text


def wrap_advice(message: str, hint: str, width: int) -> str:
    """In lines that end at spaces, so that names can be copied; what to do about it begins one of its own."""
    lines = _wrap(message, width, indent="  ")
    if hint:
        lines += _wrap(f"  -> {hint}", width, indent="     ")
    return "\n".join(lines)


def _wrap(text: str, width: int, *, indent: str) -> list[str]:
    return textwrap.wrap(
        text, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def rank_colour(rank: int) -> int:
    return _PALETTE[rank % len(_PALETTE)]


def wants_colour(stream: TextIO) -> bool:
    """Whether a stream is a terminal whose user has not said no (NO_COLOR)."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_terminal(stream)


def can_draw(stream: TextIO) -> bool:
    """Whether lines on this stream can be erased and drawn anew."""
    return is_terminal(stream) and os.environ.get("TERM") != "dumb"


def is_terminal(stream: TextIO) -> bool:
    try:
        return stream.isatty()
    except (AttributeError, ValueError):
        return False

"""Output of tables, pairs, JSON and YAML on stdout.

Text is aligned and plain, and no meaning depends on color. Everything that comes from a user's code goes
through `clean` here. This module knows nothing about jobs.
"""

from __future__ import annotations

import json
import sys
import time
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import click

from windlass import records
from windlass.client.terminal import clean, one_line, paint, render_seconds, wants_color

_COLORS = {
    "succeeded": 32,
    "returned": 32,
    "ok": 32,
    "running": 36,
    "starting": 36,
    "pending": 36,
    "stopping": 33,
    "cancelled": 33,
    "stopped": 33,
    "warn": 33,
    "failed": 31,
    "raised": 31,
    "killed": 31,
    "exited": 31,
    "lost": 31,
    "missing": 31,
}


def print_json(value: Any) -> None:
    """Print one JSON document. NaN and infinities become text, and control characters are escaped."""
    click.echo(json.dumps(records.to_json(value), indent=2, allow_nan=False))


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(json.dumps(records.to_json(value), allow_nan=False, separators=(",", ":")))


def print_yaml(documents: Sequence[Any]) -> None:
    """Print documents as YAML. Keys keep their order."""
    import yaml

    plain = [records.to_json(document) for document in documents]
    text = yaml.safe_dump_all(plain, sort_keys=False, allow_unicode=True, width=100)
    click.echo(text, nl=False)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns. Without rows, nothing is printed."""
    cells = [[one_line(cell) for cell in row] for row in rows]
    if not cells:
        return
    color = wants_color(sys.stdout)
    widths = [max(_width(row[i]) for row in (header, *cells)) for i in range(len(header))]
    click.echo(paint(_align(header, widths), 1, color=color), color=True)
    for row in cells:
        painted = [_paint_state(cell, color=color) for cell in row]
        click.echo(_align(painted, widths, plain=row), color=True)


def print_pairs(pairs: Iterable[tuple[str, str]]) -> None:
    """Print `name  value` lines. A value of several lines is indented, and an empty one is left out."""
    kept = [(name, value) for name, value in pairs if value]
    width = max((len(name) for name, _ in kept), default=0)
    color = wants_color(sys.stdout)
    for name, value in kept:
        first, *rest = clean(value, color=False).splitlines() or [""]
        word, space, tail = first.partition(" ")
        click.echo(f"{name:<{width}}  {_paint_state(word, color=color)}{space}{tail}", color=True)
        for line in rest:
            click.echo(f"{'':<{width}}  {line}")


def shorten(text: str, width: int) -> str:
    """Return the text, cut to at most `width` characters."""
    return text if len(text) <= width else f"{text[: width - 1]}…"


def render_age(since_s: float) -> str:
    """Return roughly how long ago a time was: 12s, 3m, 5h, 2d."""
    return render_short(time.time() - since_s)


def render_short(seconds: float | None) -> str:
    """Return a duration in one suitable unit, or "-" for None."""
    if seconds is None:
        return "-"
    seconds = max(0.0, seconds)
    for unit, size_s in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size_s:
            return f"{int(seconds // size_s)}{unit}"
    return f"{int(seconds)}s"


def render_clock(at_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def render_span(started_s: float, ended_s: float | None) -> str:
    """Return how long something took, or has been running."""
    return render_seconds((ended_s or time.time()) - started_s)


def _paint_state(word: str, *, color: bool) -> str:
    code = _COLORS.get(word)
    return paint(word, code, color=color) if code else word


def _align(
    shown: Sequence[str], widths: Sequence[int], *, plain: Sequence[str] | None = None
) -> str:
    pads = [width - _width(cell) for cell, width in zip(plain or shown, widths, strict=True)]
    cells = [cell + " " * pad for cell, pad in zip(shown, pads, strict=True)]
    return "  ".join(cells).rstrip()


def _width(text: str) -> int:
    """Return the columns on a terminal. East Asian letters take two, and combining marks take none."""
    return sum(
        0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )

"""Lines of the result: a contestant's times in one case, its peer and its targets.

The time of a line is its median. A target is a number of seconds, or how many times as long as Windlass the
peer must take. This module performs no I/O.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

_MANY = 100  # with this many samples or more, the worst is the 99th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One contestant in one case."""

    case: str
    who: str
    seconds: Sequence[float] = ()
    limit_s: float | None = None  # maximum time
    against: str = ""  # the contestant of the same case to compare with
    times: float | None = None  # minimum ratio to the time of `against`
    grown_bytes: int | None = None  # peak memory, without the argument itself
    note: str = ""

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.seconds else None

    @property
    def worst_s(self) -> float | None:
        if not self.seconds:
            return None
        ordered = sorted(self.seconds)
        return ordered[int(len(ordered) * 0.99)] if len(ordered) >= _MANY else ordered[-1]


def find_ratio(line: Line, lines: Iterable[Line]) -> float | None:
    """Return the ratio of a line's time to that of `against`."""
    ours = [each for each in lines if (each.case, each.who) == (line.case, line.against)]
    if not ours or ours[0].median_s is None or line.median_s is None:
        return None
    return line.median_s / ours[0].median_s


def render_table(lines: Sequence[Line]) -> str:
    """Return the results as a Markdown table."""
    head = [
        "| case | tool | median | worst (p99) | memory | times Windlass | target |",
        "|---|---|--:|--:|--:|--:|---|",
    ]
    rows, last = [], ""
    for line in lines:
        rows.append(_render_line(line, lines, line.case if line.case != last else ""))
        last = line.case
    return "\n".join([*head, *rows])


def _render_line(line: Line, lines: Sequence[Line], case: str) -> str:
    if line.median_s is None or line.worst_s is None:
        return f"| {case} | {line.who} | {line.note} | | | | |"
    ratio = find_ratio(line, lines)
    cells = [
        case,
        line.who,
        render_seconds(line.median_s),
        render_seconds(line.worst_s),
        "" if line.grown_bytes is None else f"{line.grown_bytes / 1e6:,.0f} MB",
        "" if ratio is None else f"{ratio:.2f}x" if ratio < 10 else f"{ratio:.0f}x",
        "; ".join(text for text, _ in judge(line, ratio)),
    ]
    return f"| {' | '.join(cells)} |"


def judge(line: Line, ratio: float | None) -> list[tuple[str, bool]]:
    """Return each of a line's targets as text, and whether it is met."""
    found = []
    if line.limit_s is not None and line.median_s is not None:
        is_met = line.median_s <= line.limit_s
        found.append((f"<= {render_seconds(line.limit_s)}: {_word(is_met)}", is_met))
    if line.times is not None and ratio is not None:
        is_met = ratio >= line.times
        found.append((f">= {line.times:g}x: {_word(is_met)}", is_met))
    return found


def _word(is_met: bool) -> str:
    return "met" if is_met else "missed"


def render_seconds(seconds: float) -> str:
    if seconds >= 0.1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.1f} ms" if seconds >= 0.01 else f"{seconds * 1e3:.2f} ms"


def render_json(lines: Sequence[Line]) -> list[dict[str, Any]]:
    """Return all measurements as JSON objects."""
    found = []
    for line in lines:
        ratio = find_ratio(line, lines)
        found.append(
            {
                "case": line.case,
                "who": line.who,
                "median_s": line.median_s,
                "worst_s": line.worst_s,
                "grown_bytes": line.grown_bytes,
                "times_ours": ratio,
                "targets": [{"text": text, "is_met": met} for text, met in judge(line, ratio)],
                "note": line.note,
                "seconds": list(line.seconds),
            }
        )
    return found

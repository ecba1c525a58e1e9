"""The phases of a job, from submit to its first step and its end, as rows and as a table.

Pure: reads the timeline of a JobStatus, knows neither clocks nor terminals. What a moment means is the
agent's to say; here it is only placed.
"""

from __future__ import annotations

from dataclasses import dataclass

from windlass.wire.states import MomentName
from windlass.wire.status import JobStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One phase: how long it took, and when it was reached, both in seconds."""

    name: str
    took_s: float
    since_submit_s: float


def make_rows(status: JobStatus) -> tuple[Row, ...]:
    """The moments in order of time; the submit is the first, the job's end the last.

    Clocks of several machines disagree by a little, and an API server's is whole seconds: what seems to come
    before the submit came with it, and an end that seems to come before another moment came with that.
    """
    # of the same time those stay in order that are
    in_order = sorted(
        status.timeline, key=lambda moment: (moment.name != MomentName.SUBMITTED, moment.at_s)
    )
    moments: list[tuple[float, str]] = [(moment.at_s, moment.name) for moment in in_order]
    if status.ended_at_s is not None:
        moments.append((status.ended_at_s, status.phase.value))
    if not moments:
        return ()
    first_s = before_s = moments[0][0]
    rows = []
    for at_s, name in moments:
        took_s, before_s = max(0.0, at_s - before_s), max(at_s, before_s)
        rows.append(Row(name=name, took_s=took_s, since_submit_s=before_s - first_s))
    return tuple(rows)


def render_timeline(status: JobStatus) -> str:
    """The table of phases; empty when nothing has been seen yet."""
    rows = make_rows(status)[1:]
    if not rows:
        return ""
    width = max(len("phase"), *(len(row.name) for row in rows))
    lines = [f"  {'phase':<{width}}  {'took':>9}  {'since submit':>12}"]
    for row in rows:
        took, since = f"{row.took_s:.2f} s", f"{row.since_submit_s:.2f} s"
        lines.append(f"  {row.name:<{width}}  {took:>9}  {since:>12}")
    return "\n".join(lines)

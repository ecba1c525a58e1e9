"""Table of a job's phases."""

from __future__ import annotations

from dataclasses import replace

from windlass.observe.explain import make_timeline_rows, render_timeline
from windlass.wire.status import JobStatus, Moment, Phase

STATUS = JobStatus(
    job_id="a",
    name="a",
    engine="local",
    work="a.py",
    phase=Phase.SUCCEEDED,
    created_at_s=100.0,
    ended_at_s=112.5,
    timeline=(
        Moment(name="submitted", at_s=100.0),
        Moment(name="first step", at_s=102.25),
        Moment(name="agent up", at_s=100.5),
    ),
)


def test_rows_are_in_time_order_and_end_with_the_job() -> None:
    rows = [(row.name, row.took_s, row.since_submit_s) for row in make_timeline_rows(STATUS)]
    assert rows == [
        ("submitted", 0.0, 0.0),
        ("agent up", 0.5, 0.5),
        ("first step", 1.75, 2.25),
        ("succeeded", 10.25, 12.5),
    ]


def test_the_table() -> None:
    assert render_timeline(STATUS).splitlines() == [
        "  phase            took  since submit",
        "  agent up       0.50 s        0.50 s",
        "  first step     1.75 s        2.25 s",
        "  succeeded     10.25 s       12.50 s",
    ]


def test_clock_set_back_gives_no_negative_durations() -> None:
    status = JobStatus(
        job_id="a", name="a", engine="local", work="a", ended_at_s=99.0, timeline=STATUS.timeline
    )
    assert all(row.took_s >= 0 and row.since_submit_s >= 0 for row in make_timeline_rows(status))


def test_rows_never_go_back_in_time() -> None:
    """A node's clock may be behind the client's, and the API server reports the end in whole seconds."""
    status = replace(
        STATUS,
        ended_at_s=102.0,
        timeline=(Moment(name="agent up", at_s=99.0), *STATUS.timeline[:2]),
    )
    rows = make_timeline_rows(status)
    assert [row.name for row in rows] == ["submitted", "agent up", "first step", "succeeded"]
    times = [row.since_submit_s for row in rows]
    assert times == sorted(times) == [0.0, 0.0, 2.25, 2.25]
    assert "submitted" not in render_timeline(status)
    assert "agent up" in render_timeline(status)


def test_nothing_seen_yet() -> None:
    status = JobStatus(job_id="a", name="a", engine="local", work="a")
    assert make_timeline_rows(status) == ()
    assert render_timeline(status) == ""

"""Lines of ranks in a pod's log. They are readable, and parsed back with rank, attempt and time."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.wire.log_lines import (
    FULL,
    PART,
    REPLACED,
    pseudo_rank,
    read_pod_log,
    read_record,
    render_pod_lines,
    render_prefix,
)

WHEN = b"2026-01-31T12:00:00.123456789Z"
WHEN_S = datetime(2026, 1, 31, 12, 0, 0, 123456, tzinfo=timezone.utc).timestamp()
# A rank's log file may hold anything except line ends and carriage returns.
TEXT = st.binary(max_size=80).map(lambda data: data.replace(b"\n", b"").replace(b"\r", b""))


def make_record(data, tag=FULL, stream="stdout", at_s=0.0):
    return render_prefix(at_s, stream, tag) + data + b"\n"


def stamp(lines, when=WHEN):
    """Add times to lines, as the API server does."""
    return b"".join(when + b" " + line + b"\n" for line in lines.split(b"\n")[:-1])


def test_form_of_lines():
    records = make_record(b"step 7", stream="stderr") + make_record(b"")
    assert render_pod_lines(records, rank=3, attempt=0) == b"[rank 3, stderr] step 7\n[rank 3] \n"
    assert render_pod_lines(records, rank=3, attempt=1) == (
        b"[rank 3, attempt 1, stderr] step 7\n[rank 3, attempt 1] \n"
    )


def test_framework_output_is_distinguished_from_that_of_ranks():
    lines = render_pod_lines(make_record(b"hello"), rank=pseudo_rank(1), attempt=0)
    assert lines == b"[node 1] hello\n"
    [(rank, attempt, record)] = read_pod_log(stamp(lines))
    assert (rank, attempt, record.endswith(b"stdout F hello\n")) == (pseudo_rank(1), 0, True)


def test_progress_bars_and_malformed_records_are_skipped():
    records = make_record(b" 10%", REPLACED) + b"half a rec\n" + make_record(b"100%") + b"\n"
    assert render_pod_lines(records, rank=0, attempt=0) == b"[rank 0] 100%\n"
    assert render_pod_lines(b"", rank=0, attempt=0) == b""


@settings(deadline=None)
@given(
    lines=st.lists(TEXT, max_size=8),
    rank=st.integers(0, 10**6),
    attempt=st.integers(0, 999),
    tag=st.sampled_from([FULL, PART]),
    stream=st.sampled_from(["stdout", "stderr"]),
)
def test_every_line_round_trips(lines, rank, attempt, tag, stream):
    records = b"".join(make_record(line, tag, stream) for line in lines)
    found = list(read_pod_log(stamp(render_pod_lines(records, rank=rank, attempt=attempt))))
    assert [(r, a) for r, a, _ in found] == [(rank, attempt)] * len(lines)
    read = [read_record(record) for _, _, record in found]
    assert [(record.data, record.stream) for record in read] == [(line, stream) for line in lines]
    assert {record.at_s for record in read} <= {WHEN_S}


def test_rank_cannot_forge_lines_of_another():
    lines = stamp(render_pod_lines(make_record(b"[rank 7, attempt 2] fake"), rank=0, attempt=0))
    [(rank, attempt, record)] = read_pod_log(lines)
    assert (rank, attempt, read_record(record).data) == (0, 0, b"[rank 7, attempt 2] fake")


@pytest.mark.parametrize(
    ("when", "micros"),
    [
        (b"2026-01-31T12:00:00.123456789Z", 123456),
        (b"2026-01-31T12:00:00.000000001Z", 0),
        (b"2026-01-31T13:00:00.999999999+01:00", 999999),
        (b"2026-01-31T12:00:00.123456Z", 123456),
        (b"2026-01-31T12:00:00Z", 0),
    ],
)
def test_times_of_container_runtimes(when, micros):
    [(_, _, record)] = read_pod_log(when + b" [rank 0] x\n")
    expected = datetime(2026, 1, 31, 12, 0, 0, micros, tzinfo=timezone.utc).timestamp()
    assert read_record(record).at_s == expected


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[rank 0] without a time",
        WHEN,
        WHEN + b" windlass-last-word 1/1 AAAA",
        WHEN + b" 2026-01-31 12:00:00 INFO windlass.agent: [rank 0] is here",
        WHEN + b" [rank x] no",
        WHEN + b" [5 lines are missing here]",
        b"yesterday [rank 0] no",
        b"2026-01-31T12:00:00 [rank 0] a time of no place",
    ],
)
def test_other_lines_are_skipped(line):
    assert list(read_pod_log(line + b"\n" + stamp(b"[rank 1] yes\n"))) == [
        (1, 0, render_prefix(WHEN_S, "stdout", FULL) + b"yes\n")
    ]

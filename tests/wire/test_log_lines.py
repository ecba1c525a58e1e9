"""Log records: their form on disk, and the lines that a query selects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.wire.log_lines import (
    FULL,
    PART,
    REPLACED,
    LogLine,
    LogQuery,
    read_record,
    render_prefix,
)

times = st.floats(0, 4e9)
data = st.binary(max_size=60).map(lambda b: b.replace(b"\n", b" "))


@settings(deadline=None)
@given(times, st.sampled_from(["stdout", "stderr"]), st.sampled_from([FULL, PART, REPLACED]), data)
def test_round_trip(at_s, stream, tag, content):
    record = read_record(render_prefix(at_s, stream, tag) + content + b"\n")
    assert (record.stream, record.tag, record.data) == (stream, tag, content)
    assert record.at_s == pytest.approx(at_s, abs=2e-6)


def test_the_form_is_frozen():
    assert (
        render_prefix(1769860800.123456, "stdout", FULL) == b"2026-01-31T12:00:00.123456Z stdout F "
    )


def test_whitespace_of_a_line_is_kept():
    line = render_prefix(0, "stdout", FULL)
    assert read_record(line + b"  two  blanks  \r").data == b"  two  blanks  \r"
    assert read_record(line).data == b""


@pytest.mark.parametrize(
    "line",
    [
        b"", b"\n", b" ", b"nonsense", b"a b c d",
        b"2026-01-31T12:00:00.123456Z stdout", b"2026-01-31T12:00:00.123456Z stdout X text",
        b"2026-13-31T12:00:00.123456Z stdout F text", b"\xff\xfe stdout F text", b"now stdout F text",
        b"0001-01-01 stdout F text", b"12:00 stdout F text", b"2026-01-31T12:00:00 stdout F no time zone",
    ],
)  # fmt: skip
def test_malformed_records_are_skipped(line):
    assert read_record(line) is None


@settings(deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_a_record_or_not(line):
    record = read_record(line)
    assert record is None or record.tag in (FULL, PART, REPLACED)


def a_line(text="step 3 loss 0.5", at_s=10.0):
    return LogLine(at_s=at_s, node=0, rank=0, attempt=0, stream="stdout", text=text)


@pytest.mark.parametrize(
    ("query", "wanted"),
    [
        (LogQuery(), True),
        (LogQuery(since_s=10.0), True),
        (LogQuery(since_s=10.1), False),
        (LogQuery(grep="loss"), True),
        (LogQuery(grep=r"step \d+ loss"), True),
        (LogQuery(grep="^loss"), False),
        (LogQuery(grep="LOSS"), False),
        (LogQuery(grep="loss", since_s=11), False),
        (LogQuery(grep=""), True),
    ],
    ids=str,
)
def test_lines_selected_by_a_query(query, wanted):
    assert query.matches(a_line()) is wanted

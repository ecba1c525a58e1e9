"""Log readers: complete, merged by time, or following. Malformed lines are skipped."""

from __future__ import annotations

import os

import pytest

from windlass.plan.plan import Facts, make_plan
from windlass.spec.job_spec import JobSpec
from windlass.spec.work import Script
from windlass.wire.job_folder import JobFolder
from windlass.wire.log_files import LogFiles, RankLog, find_logs
from windlass.wire.log_lines import FULL, PART, REPLACED, LogQuery, render_prefix


def record(text, at_s=1.0, tag=FULL, stream="stdout"):
    data = text if isinstance(text, bytes) else text.encode()
    return render_prefix(at_s, stream, tag) + data + b"\n"


def texts(lines):
    return [line.text for line in lines]


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "rank-0.log"
    path.touch()
    return RankLog(path, 0, 0, 0)


def append(log, *records):
    with log.path.open("ab") as file:
        file.writelines(records)


def test_lines_are_read_once_and_only_when_complete(log):
    append(log, record("one"), record("two")[:-4])
    assert texts(log.read_new()) == ["one"]
    assert texts(log.read_new()) == []
    append(log, record("two")[-4:], record("three"))
    assert texts(log.read_new()) == ["two", "three"]


def test_file_that_does_not_exist_yet(tmp_path):
    log = RankLog(tmp_path / "later.log", 0, 0, 0)
    assert list(log.read_new()) == []
    append(log, record("now"))
    assert texts(log.read_new()) == ["now"]


def test_pieces_are_joined_and_streams_are_kept_apart(log):
    append(
        log,
        record("out ", 1, PART),
        record("err ", 2, PART, "stderr"),
        record("out end", 3),
        record("err end", 4, stream="stderr"),
    )
    lines = list(log)
    assert [(line.stream, line.text, line.at_s) for line in lines] == [
        ("stdout", "out out end", 1.0),
        ("stderr", "err err end", 2.0),
    ]


def test_unterminated_lines_come_last(log):
    append(log, record("half a", tag=PART))
    assert list(log.read_new()) == []
    assert texts(log.read_rest()) == ["half a"]
    assert list(log.read_rest()) == []


def test_progress_bars_are_marked(log):
    append(log, record("10%", tag=REPLACED), record("", tag=REPLACED), record("100%"), record(""))
    assert [(line.text, line.replaced) for line in log] == [
        ("10%", True),
        ("100%", False),
        ("", False),
    ]


def test_invalid_utf8_is_shown_and_a_character_may_span_pieces(log):
    append(log, record(b"\xff ok"), record(b"caf\xc3", tag=PART), record(b"\xa9"))
    assert texts(log) == ["\\xff ok", "café"]


def test_a_very_long_line_is_cut_but_no_character_of_it(log):
    whole = ("x" + "é" * 200_000).encode()
    pieces = [whole[i : i + 16384] for i in range(0, len(whole), 16384)]
    append(log, *(record(piece, tag=PART) for piece in pieces), record(""))
    lines = texts(log)
    assert "".join(lines) == whole.decode()
    assert len(lines) > 4
    assert max(map(len, lines)) <= 64 << 10


def test_malformed_lines_are_skipped(log):
    append(
        log,
        record("before"),
        b"\n",
        b"garbage\n",
        b"\x00\xff\n",
        b"2026 stdout F x\n",
        record("after"),
    )
    assert texts(log) == ["before", "after"]


def test_a_large_log_is_read_in_steps(log):
    append(log, *(record("x" * 1000) for _ in range(3000)))
    first = len(list(log.read_new()))
    assert 0 < first < 3000
    assert first + len(list(log)) == 3000


@pytest.fixture
def job(tmp_path):
    spec = JobSpec(work=Script(path="a.py"), nodes=2, procs=2)
    plan = make_plan(spec, job_id="j", now_s=0, facts=Facts(environ={}))
    folder = JobFolder(tmp_path / "job")
    for attempt in (0, 1):
        os.makedirs(folder.attempt(attempt))
        for rank in range(4):
            at_s = 100.0 * attempt + rank
            content = record(f"a{attempt} r{rank} first", at_s) + record(
                f"a{attempt} r{rank} last", at_s + 10
            )
            folder.log(attempt, rank).write_bytes(content)
    return folder, plan


def test_all_ranks_are_merged_by_time(job):
    lines = list(LogFiles(*job, LogQuery()).read_all())
    assert len(lines) == 16
    assert [line.at_s for line in lines] == sorted(line.at_s for line in lines)
    assert {(line.rank, line.node) for line in lines} == {(0, 0), (1, 0), (2, 1), (3, 1)}


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        (LogQuery(rank=3), [(0, 3), (1, 3)]),
        (LogQuery(node=1), [(0, 2), (0, 3), (1, 2), (1, 3)]),
        (LogQuery(attempt=1), [(1, 0), (1, 1), (1, 2), (1, 3)]),
        (LogQuery(rank=0, attempt=0), [(0, 0)]),
        (LogQuery(rank=0, node=1), []),
        (LogQuery(rank=9), []),
        (LogQuery(attempt=9), []),
    ],
    ids=str,
)
def test_files_that_a_query_reads(job, query, expected):
    assert [(log.attempt, log.rank) for log in find_logs(*job, query)] == expected


def test_grep_and_since(job):
    assert texts(LogFiles(*job, LogQuery(grep="r2 last", since_s=50)).read_all()) == ["a1 r2 last"]


def test_following_finds_new_lines_and_new_attempts(job):
    folder, plan = job
    files = LogFiles(folder, plan, LogQuery(rank=1))
    assert texts(files.read_new()) == ["a0 r1 first", "a0 r1 last", "a1 r1 first", "a1 r1 last"]
    assert files.read_new() == []
    folder.attempt(2).mkdir()
    folder.log(2, 1).write_bytes(record("a2", 300) + record("half", 301, PART))
    assert texts(files.read_new()) == ["a2"]
    assert texts(files.read_rest()) == ["half"]

"""Last word of a job in a pod's log. It names omitted files, and is ignored if it is incomplete."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.wire.last_word import (
    LastWord,
    choose_files,
    num_lines,
    read_last_word,
    render_last_word,
)

PATHS = st.from_regex(r"attempt-[0-9]/rank-[0-9]{1,3}\.result", fullmatch=True)


@settings(deadline=None, max_examples=40)
@given(status=st.binary(max_size=200), others=st.dictionaries(PATHS, st.binary(max_size=300)))
def test_last_word_round_trips(status, others):
    files = {"status.json": status, **others}
    assert read_last_word(render_last_word(files)) == LastWord(files=files)


def make_large(num_bytes=60_000):
    """Return incompressible bytes, so that they take several lines."""
    return {"status.json": b"{}", "attempt-0/rank-0.result": random.Random(0).randbytes(num_bytes)}


def test_it_takes_many_lines_that_no_container_runtime_splits():
    said = render_last_word(make_large())
    assert num_lines(said) == said.count(b"\n") == 7
    assert max(map(len, said.splitlines())) < 16 << 10
    assert read_last_word(said) == LastWord(files=make_large())


def test_surrounding_lines_are_ignored():
    said = render_last_word(make_large())
    noisy = b"[rank 0] hello\n\n" + said.replace(b"\n", b"\nsomething of stderr\n", 3) + b"bye\n"
    assert read_last_word(noisy) == LastWord(files=make_large())


def test_output_of_ranks_is_not_read_as_a_last_word():
    """Lines of a rank begin with its name."""
    said = render_last_word({"status.json": b"{}"})
    printed = b"[rank 0] windlass-last-word 1/1 AAAA\n"
    assert read_last_word(printed) is None
    assert num_lines(printed) == 0
    for log in (printed + said, said + printed):
        assert read_last_word(log) == LastWord(files={"status.json": b"{}"})


@pytest.mark.parametrize("line", range(7))
def test_partial_last_word_is_ignored(line):
    lines = render_last_word(make_large()).splitlines(keepends=True)
    assert read_last_word(b"".join(lines[:line] + lines[line + 1 :])) is None


def test_last_word_with_a_truncated_line_is_ignored():
    said = render_last_word(make_large())
    assert read_last_word(said[:-20]) is None
    assert read_last_word(said.replace(b"2/7 ", b"2/7 !", 1)) is None
    assert read_last_word(b"windlass-last-word 1/1 AAAA\n") is None


@pytest.mark.parametrize("log", [b"", b"\n", b"[rank 0] step 1\n", b"\xff\xfe\x00"])
def test_log_without_a_last_word(log):
    assert read_last_word(log) is None
    assert num_lines(log) == 0


def test_omitted_files_are_named():
    files = {"status.json": b"s" * 50, "a": b"a" * 60, "b": b"b" * 30, "c": b"c" * 31, "d": b""}
    assert read_last_word(render_last_word(files, max_bytes=60)) == LastWord(
        files={"status.json": b"s" * 50, "b": b"b" * 30, "d": b""},
        omitted={"a": 60, "c": 31},
    )


def test_status_is_always_included():
    files = {"status.json": b"s" * 500, "a": b"a"}
    assert read_last_word(render_last_word(files, max_bytes=0)) == LastWord(
        files={"status.json": b"s" * 500}, omitted={"a": 1}
    )


def test_selection_depends_on_sizes_alone():
    sizes = {"a.result": 1 << 40, "b.result": 50, "c.log": 10, "d.result": 49}
    assert choose_files(sizes, max_bytes=100) == {"d.result", "b.result"}
    said = render_last_word({"status.json": b"{}"}, omitted={"a.result": 1 << 40})
    assert read_last_word(said).omitted == {"a.result": 1 << 40}

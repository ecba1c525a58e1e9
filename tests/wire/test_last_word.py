"""A job's last word: what was said comes back whole, what was left out is named, half of it is nothing."""

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
def test_what_was_said_comes_back(status, others):
    files = {"status.json": status, **others}
    assert read_last_word(render_last_word(files)) == LastWord(files=files)


def make_large(num_bytes=60_000):
    """Bytes that no packing makes smaller, so that they take several lines."""
    return {"status.json": b"{}", "attempt-0/rank-0.result": random.Random(0).randbytes(num_bytes)}


def test_it_may_take_many_lines_none_of_which_is_cut_by_a_container_runtime():
    said = render_last_word(make_large())
    assert num_lines(said) == said.count(b"\n") == 7
    assert max(map(len, said.splitlines())) < 16 << 10
    assert read_last_word(said) == LastWord(files=make_large())


def test_what_stands_around_it_does_not_matter():
    said = render_last_word(make_large())
    noisy = b"[rank 0] hello\n\n" + said.replace(b"\n", b"\nsomething of stderr\n", 3) + b"bye\n"
    assert read_last_word(noisy) == LastWord(files=make_large())


def test_what_a_rank_prints_is_not_taken_for_it():
    """A rank's lines begin with its name."""
    said = render_last_word({"status.json": b"{}"})
    printed = b"[rank 0] windlass-last-word 1/1 AAAA\n"
    assert read_last_word(printed) is None
    assert num_lines(printed) == 0
    for log in (printed + said, said + printed):
        assert read_last_word(log) == LastWord(files={"status.json": b"{}"})


@pytest.mark.parametrize("line", range(7))
def test_half_of_it_is_nothing(line):
    lines = render_last_word(make_large()).splitlines(keepends=True)
    assert read_last_word(b"".join(lines[:line] + lines[line + 1 :])) is None


def test_a_line_that_was_cut_makes_it_nothing():
    said = render_last_word(make_large())
    assert read_last_word(said[:-20]) is None
    assert read_last_word(said.replace(b"2/7 ", b"2/7 !", 1)) is None
    assert read_last_word(b"windlass-last-word 1/1 AAAA\n") is None


@pytest.mark.parametrize("log", [b"", b"\n", b"[rank 0] step 1\n", b"\xff\xfe\x00"])
def test_a_log_without_one(log):
    assert read_last_word(log) is None
    assert num_lines(log) == 0


def test_what_does_not_fit_is_named():
    files = {"status.json": b"s" * 50, "a": b"a" * 60, "b": b"b" * 30, "c": b"c" * 31, "d": b""}
    assert read_last_word(render_last_word(files, max_bytes=60)) == LastWord(
        files={"status.json": b"s" * 50, "b": b"b" * 30, "d": b""},
        omitted={"a": 60, "c": 31},
    )


def test_the_status_goes_along_whatever_its_size():
    files = {"status.json": b"s" * 500, "a": b"a"}
    assert read_last_word(render_last_word(files, max_bytes=0)) == LastWord(
        files={"status.json": b"s" * 500}, omitted={"a": 1}
    )


def test_what_fits_is_known_by_sizes_alone():
    sizes = {"a.result": 1 << 40, "b.result": 50, "c.log": 10, "d.result": 49}
    assert choose_files(sizes, max_bytes=100) == {"d.result", "b.result"}
    said = render_last_word({"status.json": b"{}"}, omitted={"a.result": 1 << 40})
    assert read_last_word(said).omitted == {"a.result": 1 << 40}

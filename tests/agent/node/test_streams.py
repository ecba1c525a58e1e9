"""Streams: all output of a rank can be read back, in any chunks, with bounded memory."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from windlass import names
from windlass.agent.node.rank_streams import LineCutter, RankStreams
from windlass.wire.log_files import RankLog
from windlass.wire.log_lines import FULL, PART, REPLACED, read_record

pieces = st.sampled_from(
    [b"ab", b"\n", b"\r", b"\r\n", b"10%", b"\xff\xc3", "é😀".encode(), b"x" * 20_000]
)
FLUSH = None  # the timer for unfinished lines has fired
steps = st.lists(st.tuples(st.one_of(st.just(FLUSH), pieces), st.floats(0, 0.3)), max_size=12)


def cut(steps, stream="stdout"):
    """Return the log after these steps and the end of the stream."""
    cutter, now_s, log = LineCutter(stream), 1000.0, b""
    for chunk, passed_s in steps:
        now_s += passed_s
        log += cutter.flush(now_s) if chunk is FLUSH else cutter.feed(chunk, now_s)
        assert len(cutter._pending) <= names.MAX_LOG_RECORD_BYTES
    return log + cutter.flush(now_s, tag=FULL)


def read(log):
    with tempfile.NamedTemporaryFile() as file:
        Path(file.name).write_bytes(log)
        return list(RankLog(Path(file.name), 0, 0, 0))


def find_visible_text(line):
    """Return what a terminal finally shows of a line, which is the text after the last carriage return."""
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "backslashreplace")


def expected(text):
    *lines, rest = text.split(b"\n")
    return [find_visible_text(line) for line in lines] + list(
        filter(None, [find_visible_text(rest)])
    )


def joined(lines):
    return [line.text for line in lines if not line.replaced]


@settings(deadline=None, max_examples=300)
@given(steps)
# a progress bar drawn ten times a second, with flushes in between
@example(
    [(b"\r1%", 0.1), (b"\r2%", 0.1), (FLUSH, 0.1), (b"\r3%", 0.05), (FLUSH, 0.2), (b"\r4%\n", 0)]
)
# a progress bar that ends each drawing with a carriage return
@example([(b"1%\r", 0), (FLUSH, 0.2), (b"2%\r", 0), (FLUSH, 0.2), (b"3%\r\n", 0)])
@example([(b"ab", 0), (FLUSH, 0.2), (b"\r", 0), (FLUSH, 0.2), (b"\n", 0)])
@example([(b"x" * 80_000, 0), (b"\r", 0), (b"ab", 0)])
def test_log_has_what_was_printed(steps):
    printed = b"".join(chunk for chunk, _ in steps if chunk is not FLUSH)
    shown, visible = joined(read(cut(steps))), expected(printed)
    overwritten = (
        text for line in printed.split(b"\n") for text in line.rstrip(b"\r").split(b"\r")[:-1]
    )
    if any(
        len(text) > 60_000 for text in overwritten
    ):  # its first part is written before the return
        whole, place = "".join(shown), 0
        for text in visible:
            place = whole.index(text, place) + len(text)
    elif any(len(line) > 60_000 for line in visible):  # the reader splits it, but nothing is lost
        assert "".join(shown) == "".join(visible)
    else:
        assert shown == visible


@settings(deadline=None)
@given(st.binary(max_size=200), st.lists(st.integers(0, 200), max_size=6))
def test_any_bytes_in_any_chunking(text, cuts):
    cuts = sorted({min(cut, len(text)) for cut in cuts})
    chunks = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert joined(read(cut([(chunk, 0.0) for chunk in chunks]))) == expected(text)


@settings(deadline=None)
@given(steps)
def test_every_record_is_well_formed_and_bounded(steps):
    *lines, rest = cut(steps, "stderr").split(b"\n")
    assert rest == b""
    for line in lines:
        record = read_record(line)
        assert record is not None
        assert record.stream == "stderr"
        assert len(record.data) <= names.MAX_LOG_RECORD_BYTES
        assert b"\r" not in record.data


def test_long_line_is_written_immediately():
    cutter = LineCutter("stdout")
    for _ in range(50):
        log = cutter.feed(b"x" * 300_000, 0.0)
        assert len(log) > 280_000
        assert len(cutter._pending) <= names.MAX_LOG_RECORD_BYTES
    tags = {read_record(line).tag for line in log.splitlines()}
    assert tags == {PART}


def test_a_progress_bar_is_thinned():
    cutter, log, now_s = LineCutter("stderr"), b"", 1000.0
    for step in range(1000):
        now_s += 0.01
        log += cutter.feed(f"\r{step}%".encode(), now_s)
    log += cutter.feed(b"\n", now_s)
    lines = read(log)
    assert [line.text for line in lines if not line.replaced] == ["999%"]
    drawings = [line.text for line in lines if line.replaced]
    assert 30 <= len(drawings) <= 51  # five drawings per second for ten seconds
    assert {read_record(line).tag for line in log.splitlines()} == {REPLACED, FULL}


def test_bar_that_ends_with_a_carriage_return_is_not_buffered():
    cutter = LineCutter("stderr")
    for step in range(100_000):
        cutter.feed(f"{step}%\r".encode(), 1000.0)
        assert len(cutter._pending) < 10


def test_a_line_cut_short_by_the_rank_s_end_is_ended():
    cutter = LineCutter("stdout")
    log = cutter.feed(b"half", 0.0) + cutter.flush(0.0)
    assert not cutter.has_pending
    log += cutter.flush(0.0, tag=FULL)
    assert [read_record(line).tag for line in log.splitlines()] == [PART, FULL]


# -- pipes -----------------------------------------------------------------------------------------


def stream(tmp_path, write, path=None):
    """Run `write(out, err)` with the pipes of a rank, and return its log and the reported problems."""
    path = path or tmp_path / "rank-0.log"
    trouble: list[str] = []

    async def run():
        streams = RankStreams(path, trouble.append)
        out, err = streams.open()
        try:
            await asyncio.get_running_loop().run_in_executor(None, write, out, err)
        finally:
            os.close(out)
            os.close(err)
            streams.close()

    asyncio.run(run())
    return RankLog(path, 0, 0, 0), trouble


def test_both_pipes_go_into_one_log(tmp_path):
    def write(out, err):
        os.write(out, b"to out\n")
        os.write(err, b"to err\nunfinished")

    before_s = time.time()
    log, trouble = stream(tmp_path, write)
    lines = list(log)
    assert {(line.stream, line.text) for line in lines} == {
        ("stdout", "to out"),
        ("stderr", "to err"),
        ("stderr", "unfinished"),
    }
    assert all(before_s - 1 <= line.at_s <= time.time() + 1 for line in lines)
    assert trouble == []
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_megabytes_through_a_pipe(tmp_path):
    text = b"".join(b"line %d\n" % number for number in range(200_000))

    def write(out, _err):
        view = memoryview(text)
        while view:
            view = view[os.write(out, view) :]

    log, _ = stream(tmp_path, write)
    assert "".join(f"{line.text}\n" for line in log).encode() == text


def test_unfinished_line_is_visible_while_the_rank_runs(tmp_path):
    from waits import wait_for

    path = tmp_path / "rank-0.log"

    def write(out, _err):
        os.write(out, b"continue? [y/n] ")
        wait_for(lambda: b"continue?" in path.read_bytes(), "the prompt is in the log")

    log, _ = stream(tmp_path, write)
    assert [line.text for line in log] == ["continue? [y/n] "]


def test_pipe_held_by_a_grandchild_does_not_block(tmp_path):
    kept = []

    def write(out, _err):
        kept.append(os.dup(out))
        os.write(out, b"said\n")

    log, _ = stream(tmp_path, write)
    assert [line.text for line in log] == ["said"]
    with pytest.raises(BrokenPipeError):
        os.write(kept[0], b"late")
    os.close(kept[0])


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_loses_lines_but_never_blocks(tmp_path):
    def write(out, _err):
        for _ in range(100):
            os.write(out, b"x" * 50_000 + b"\n")

    _, trouble = stream(tmp_path, write, Path("/dev/full"))
    assert trouble == ["full is incomplete: No space left on device"]


def test_unopenable_log_is_reported(tmp_path):
    _, trouble = stream(tmp_path, lambda out, err: os.write(out, b"x\n"), tmp_path / "no" / "r.log")
    assert trouble == ["r.log is incomplete: No such file or directory"]

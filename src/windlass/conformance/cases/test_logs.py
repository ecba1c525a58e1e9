"""Logs: every line of every rank, whatever its content."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest
import rank_work as work


@pytest.mark.engine_matters
def test_lines_of_every_rank(on):
    job = on.submit(work.print_lines, (3,), nodes=2, procs=2)
    job.wait(90)
    for rank in range(4):
        lines = [line for line in job.logs(rank=rank) if line.stream == "stdout"]
        assert [line.text for line in lines] == [f"line {i} of rank {rank}" for i in range(3)]
        assert {line.node for line in lines} == {rank // 2}
    merged = list(job.logs())
    assert len(merged) == 16
    assert [line.at_s for line in merged] == sorted(line.at_s for line in merged)
    assert len(list(job.logs(node=1))) == 8
    assert [line.text for line in job.logs(rank=0, grep="^line [12]")] == [
        "line 1 of rank 0",
        "line 2 of rank 0",
    ]
    assert list(job.logs(since=time.time())) == []
    assert [line.stream for line in job.logs(rank=1, grep="stderr")] == ["stderr"]


@pytest.mark.engine_matters
def test_following_sees_everything_once(on):
    job = on.submit(work.print_lines, (500,), procs=2)
    lines = [line.text for line in job.logs(follow=True, rank=1) if line.stream == "stdout"]
    assert lines == [f"line {i} of rank 1" for i in range(500)]


@pytest.mark.engine_matters
def test_attempts_are_kept_apart(on):
    def once():
        print(f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']}", flush=True)
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            sys.exit(1)

    job = on.submit(once, restarts=1)
    job.wait(90)
    assert [line.text for line in job.logs(attempt=1)] == ["attempt 1"]
    assert [(line.attempt, line.text) for line in job.logs()] == [
        (0, "attempt 0"),
        (1, "attempt 1"),
    ]


def test_odd_bytes_survive(on):
    def odd():
        os.write(1, b"no newline at all: \xff\xfe")
        os.write(1, b"\x1b]0;title\x07\x1b[31mred\x1b[0m\n")
        os.write(1, b"10%\r20%\r100%\r\n")
        os.write(2, b"unfinished")

    job = on.submit(odd)
    job.wait(90)
    texts = [line.text for line in job.logs() if line.stream == "stdout" and not line.replaced]
    assert texts == ["no newline at all: \\xff\\xfe\x1b]0;title\x07\x1b[31mred\x1b[0m", "100%"]
    assert [line.text for line in job.logs() if line.stream == "stderr"] == ["unfinished"]


def test_a_line_of_100_megabytes(on):
    def shout():
        for _ in range(100):
            os.write(1, b"x" * 1_000_000)
        os.write(1, b"\nend\n")

    job = on.submit(shout)
    job.wait(150)
    sizes = 0
    for line in job.logs():
        assert len(line.text) <= 1 << 17
        sizes += len(line.text)
    assert sizes == 100_000_000 + 3


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_flood_of_output_in_bounded_memory(on):
    num_blocks = 400  # megabytes: far more than the bound

    def flood():
        block = b"".join(b"%099d\n" % index for index in range(10_000))
        for _ in range(num_blocks):
            os.write(1, block)
        print("the last line", flush=True)
        server = os.getppid()
        agent = int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])
        statuses = [Path(f"/proc/{pid}/status").read_text() for pid in (server, agent)]
        return [int(text.partition("VmHWM:")[2].split()[0]) // 1024 for text in statuses]

    job = on.submit(flood, preload=[])
    [peaks_mib] = job.results(timeout_s=300)
    assert max(peaks_mib) < 200, peaks_mib  # the fork server and the agent
    assert [
        line.text for line in job.logs(grep="^the last line$", since=job.status().ended_at_s - 20)
    ] == ["the last line"]

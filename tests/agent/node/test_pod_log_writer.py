"""Log of a pod: it gets every line while it is read, and otherwise a count of the missing ones."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import threading
from dataclasses import replace

import pytest
from kube.plans import make_pod_plan

from windlass.agent import pod_output
from windlass.agent.lead.status_writer import StatusWriter
from windlass.agent.pod_output import PodLogWriter
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import read_last_word
from windlass.wire.log_lines import FULL, render_prefix
from windlass.wire.status import Phase, read_status, render_status


@pytest.fixture
def pipe():
    """Yield a pipe that holds one page, like that of a container runtime that does not read."""
    read_end, write_end = os.pipe()
    fcntl.fcntl(write_end, fcntl.F_SETPIPE_SZ, 4096)
    os.set_blocking(read_end, False)
    yield read_end, write_end
    for fd in (read_end, write_end):
        with contextlib.suppress(OSError):
            os.close(fd)


def make_record(text):
    return render_prefix(0.0, "stdout", FULL) + text.encode() + b"\n"


async def read_lines(fd, last):
    """Read lines until one ends with `last`."""
    data = b""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(fd, ready.set)
    try:
        while not data.endswith(last + b"\n"):
            await asyncio.wait_for(ready.wait(), 20)
            ready.clear()
            data += os.read(fd, 65536)
    finally:
        loop.remove_reader(fd)
    return data.splitlines()


def test_lines_of_ranks_are_written_immediately(pipe):
    async def run():
        log = PodLogWriter(pipe[1])
        log.add(3, 0, make_record("hello"))
        log.add(0, 2, make_record("again"))
        return os.read(pipe[0], 4096)

    assert asyncio.run(run()) == b"[rank 3] hello\n[rank 0, attempt 2] again\n"


def test_a_slow_reader_gets_everything(pipe):
    async def run():
        log = PodLogWriter(pipe[1])
        for number in range(2000):
            log.add(0, 0, make_record(f"line {number}"))
        return await read_lines(pipe[0], b"line 1999")

    assert asyncio.run(run()) == [b"[rank 0] line %d" % number for number in range(2000)]


def test_lines_are_dropped_and_counted_without_a_reader(pipe, monkeypatch):
    monkeypatch.setattr(pod_output, "_MAX_WAITING_BYTES", 2000)

    async def run():
        log = PodLogWriter(pipe[1])
        for number in range(1000):
            log.add(0, 0, make_record(f"line {number}"))  # never blocks
        before = os.read(pipe[0], 4096)
        log._write_rest()
        before += os.read(pipe[0], 4096)
        log.add(0, 0, make_record("after"))
        return before, os.read(pipe[0], 4096)

    before, after = asyncio.run(run())
    num_kept = before.count(b"\n")
    assert before == b"".join(b"[rank 0] line %d\n" % number for number in range(num_kept))
    assert 0 < num_kept < 1000
    assert after == b"[%d lines are missing here]\n[rank 0] after\n" % (1000 - num_kept)


def test_closed_reader_does_not_raise(pipe):
    async def run():
        log = PodLogWriter(pipe[1])
        os.close(pipe[0])
        log.add(0, 0, make_record("into the void"))
        log.add(0, 0, make_record("again"))
        log.finish(b"the last word\n")

    asyncio.run(run())


def test_last_word_comes_after_all_pending_lines(pipe):
    """This holds for any slow reader, because the last word is the last thing an agent writes."""
    os.set_blocking(pipe[0], True)
    read = []

    def read_to_end():
        while not b"".join(read).endswith(b"the last word\n"):
            read.append(os.read(pipe[0], 100))

    async def run():
        log = PodLogWriter(pipe[1])
        for number in range(1000):
            log.add(0, 0, make_record(f"line {number}"))
        reader = threading.Thread(target=read_to_end, daemon=True)
        reader.start()
        log.finish(b"the last word\n")
        reader.join(20)

    asyncio.run(run())
    lines = b"".join(read).splitlines()
    assert lines == [*(b"[rank 0] line %d" % number for number in range(1000)), b"the last word"]


def write_last_word(tmp_path, monkeypatch, plan, fill):
    """Return the last word and the termination message of an agent whose job has ended."""
    monkeypatch.setattr(pod_output, "_MESSAGE_FILE", tmp_path / "message")
    folder = JobFolder(tmp_path)

    async def run():
        status_writer = StatusWriter(plan, folder)
        status_writer.start_attempt(1, fill(folder))
        status_writer.set_phase(Phase.SUCCEEDED, "AllRanksReturned", "all ranks returned")
        with (tmp_path / "log").open("wb") as file:
            log = PodLogWriter(file.fileno())
            pod_output.write_last_word(status_writer.status, folder, log)

    asyncio.run(run())
    last_word = read_last_word((tmp_path / "log").read_bytes())
    return last_word, (tmp_path / "message").read_text(), folder


def test_last_word_has_the_last_attempt(tmp_path, monkeypatch):
    plan = make_pod_plan(nodes=3, min_nodes=1)
    kept = {
        "attempt-1/rank-0.log": b"a line\n",
        "attempt-1/rank-0.result": b"value",
        "attempt-1/rank-1.error.json": b"{}",
    }

    def fill(folder):
        for path, data in {**kept, "attempt-0/rank-0.result": b"earlier"}.items():
            (tmp_path / path).parent.mkdir(exist_ok=True)
            (tmp_path / path).write_bytes(data)
        (folder.attempt(1) / ".rank-2.result.part").write_bytes(b"half")
        return plan.on_nodes([0, 2])

    last_word, message, folder = write_last_word(tmp_path, monkeypatch, plan, fill)
    status = read_status(folder.status.read_bytes())
    assert status.work
    assert last_word.files == {
        "status.json": render_status(replace(status, work="")),  # only the plan has the arguments
        "attempt-1/world.json": folder.world(1).read_bytes(),  # which node had which ranks
        **kept,
    }
    assert (last_word.omitted, message) == ({}, "succeeded: all ranks returned")
    assert json.loads(last_word.files["status.json"])["phase"] == "succeeded"

"""Ctrl-C while a job is started and followed: the job ends, whenever it came."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import rank_work
from waits import wait_for

import windlass as wl
from windlass.client.jobs.job import Interrupts
from windlass.wire.status import Phase


def interrupt(number=signal.SIGINT):
    os.kill(os.getpid(), number)


def test_one_that_comes_before_there_is_a_job_ends_it_once_it_is_there():
    with Interrupts() as interrupts:
        interrupt()
        job = wl.submit(rank_work.hang)
        interrupts.watch(job)
        status = job.wait(60)
    assert status.phase is Phase.CANCELLED
    assert status.verdict.message == "Ctrl-C in its client"
    assert interrupts.to_show == []


def test_a_second_one_ends_a_start_that_takes_too_long():
    with Interrupts():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_those_that_come_later_are_to_be_shown_and_the_second_kills():
    with Interrupts() as interrupts:
        job = wl.submit(rank_work.hang, grace_s=600)
        interrupts.watch(job)
        interrupt(signal.SIGTERM)
        interrupt()
        status = job.wait(60)
    assert interrupts.to_show == [False, True]
    assert status.verdict.message == "SIGTERM in its client"


def test_signals_are_as_before_afterwards():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


PROGRAM = """
import sys
import rank_work
import windlass as wl

try:
    wl.run(rank_work.wait_to_be_told, args=[sys.argv[1]], procs=2)
except Exception as error:
    print("swallowed", type(error).__name__)
except KeyboardInterrupt:
    print("interrupted")
    raise
finally:
    print("ended")
"""


def start_program(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    env = {**os.environ, "PYTHONPATH": str(Path(rank_work.__file__).parent)}
    words = [sys.executable, str(program), str(tmp_path / "told")]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path)
    wait_for(lambda: len(list(tmp_path.glob("told-*-started"))) == 2, "both ranks run")
    return running


@pytest.mark.parametrize(
    ("number", "printed", "heard"),
    [
        (signal.SIGINT, "interrupted\nended\n", "KeyboardInterrupt"),
        (signal.SIGTERM, "", "SIGTERM"),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_a_signal_means_to_a_program_what_it_means_without_a_job(tmp_path, number, printed, heard):
    """After the job's end; ranks hear the same one."""
    running = start_program(tmp_path)
    running.send_signal(number)
    out, _ = running.communicate(timeout=60)
    assert (out, running.returncode) == (printed, -number)
    told = sorted(path.name for path in tmp_path.glob("told-*-by-*"))
    assert told == [f"told-0-by-{heard}", f"told-1-by-{heard}"]

"""Ctrl-C during the start and while following. The job ends, whenever it is pressed."""

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


def test_interrupt_before_the_job_exists_ends_it_on_creation():
    with Interrupts() as interrupts:
        interrupt()
        job = wl.submit(rank_work.hang)
        interrupts.watch(job)
        status = job.wait(60)
    assert status.phase is Phase.CANCELLED
    assert status.verdict.message == "Ctrl-C in its client"
    assert interrupts.to_show == []


def test_second_interrupt_aborts_a_slow_start():
    with Interrupts():
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            interrupt()


def test_later_interrupts_are_shown_and_the_second_kills():
    with Interrupts() as interrupts:
        job = wl.submit(rank_work.hang, grace_s=600)
        interrupts.watch(job)
        interrupt(signal.SIGTERM)
        interrupt()
        status = job.wait(60)
    assert interrupts.to_show == [False, True]
    assert status.verdict.message == "SIGTERM in its client"


def test_signal_handlers_are_restored():
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) not in before
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


PROGRAM = """
import sys
import rank_work
import windlass as wl

try:
    wl.run(rank_work.wait_for_signal, args=[sys.argv[1]], procs=2)
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
    words = [sys.executable, str(program), str(tmp_path / "files")]
    running = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path)
    wait_for(lambda: len(list(tmp_path.glob("files-*-started"))) == 2, "both ranks run")
    return running


@pytest.mark.parametrize(
    ("number", "printed", "heard"),
    [
        (signal.SIGINT, "interrupted\nended\n", "KeyboardInterrupt"),
        (signal.SIGTERM, "", "SIGTERM"),
    ],
    ids=["ctrl-c", "sigterm"],
)
def test_program_gets_its_signal_after_the_job(tmp_path, number, printed, heard):
    """The ranks receive the same signal, and the program handles it after the job's end."""
    running = start_program(tmp_path)
    running.send_signal(number)
    out, _ = running.communicate(timeout=60)
    assert (out, running.returncode) == (printed, -number)
    files = sorted(path.name for path in tmp_path.glob("files-*-by-*"))
    assert files == [f"files-0-by-{heard}", f"files-1-by-{heard}"]

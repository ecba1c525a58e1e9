"""Client killed at a random moment: an attached job ends with it, a detached one is complete or absent."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time

import pytest
import rank_work as work
from waits import find_leftovers, wait_for

import windlass as wl

SEED = int(os.environ.get("CHAOS_SEED", "20"))
ROUNDS = int(os.environ.get("CHAOS_ROUNDS", "6"))


def _run_and_kill(tmp_path, delay_s: float, *words: str) -> str:
    script = tmp_path / "hang.py"
    script.write_text(
        "import rank_work as work\nimport subprocess\nsubprocess.Popen(['sleep', '603'])\nwork.hang()\n"
    )
    quick = tmp_path / "quick.py"
    quick.write_text("print('done')\n")
    env = {**os.environ, "PYTHONPATH": os.path.dirname(work.__file__)}
    command = [sys.executable, "-m", "windlass.cli.main", "run", *words]
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as client:
        try:
            out, _ = client.communicate(timeout=delay_s)  # the random but seeded moment of the kill
        except subprocess.TimeoutExpired:
            client.send_signal(signal.SIGKILL)
            out, _ = client.communicate()
    return out


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_an_attached_job_ends(round_, home, tmp_path):
    delay_s = random.Random(SEED * 100 + round_).uniform(0.02, 1.2)
    _run_and_kill(tmp_path, delay_s, "hang.py", "--nodes", "2", "--lease", "0.3", "--grace", "1")
    wait_for(lambda: not find_leftovers(home), f"no process remains: {find_leftovers(home)}", 20)
    for job in wl.jobs():
        assert job.status().phase.value in ("cancelled", "failed"), job.status()


@pytest.mark.parametrize("round_", range(ROUNDS))
def test_detached_job_is_complete_or_absent(round_, home, tmp_path):
    delay_s = random.Random(SEED * 200 + round_).uniform(0.02, 0.8)
    out = _run_and_kill(tmp_path, delay_s, "quick.py", "--detach", "--join-timeout", "2")
    if out.strip():  # the client printed the job's address, so the job must exist and succeed
        assert wl.attach(out.strip()).wait(30).phase.value == "succeeded"
    deadline = time.monotonic() + 30
    for job in wl.jobs():
        status = job.wait(max(0.1, deadline - time.monotonic()))
        assert status.phase.value == "succeeded" or status.verdict.kind.value == "start failed", (
            status
        )

"""Threads of OpenBLAS: it is loaded with one thread, and ranks get their own number when they need it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
from windlass.agent.forkserver.openblas import Threads

def count():
    return len(os.listdir("/proc/self/task"))

threads = Threads()
for env in {envs!r}:
    threads.set_for(env)
    pid = os.fork()
    if pid == 0:
        a, before = np.ones((600, 600)), count()
        a @ a
        print(before, count(), flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    assert count() == 1
"""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(
    ("env", "num_threads"),
    [
        ({}, CORES),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "4,2"}, min(4, CORES)),
        ({"OMP_NUM_THREADS": "100000"}, CORES),
        ({"OMP_NUM_THREADS": "0"}, CORES),
        ({"OMP_NUM_THREADS": "many"}, CORES),
        ({"GOTO_NUM_THREADS": "1"}, 1),
        ({"OPENBLAS_NUM_THREADS": " 1"}, 1),
        ({"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "2"}, 1),
    ],
    ids=str,
)
def test_rank_gets_its_threads_when_it_needs_them(env, num_threads):
    assert run(env) == [f"1 {num_threads}"]


def run(*envs):
    """Return each rank's number of threads before and after it multiplies matrices."""
    answer = subprocess.run(
        [sys.executable, "-c", CODE.format(envs=envs)], capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout.splitlines()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_each_rank_has_its_own_number():
    two, one = {"OMP_NUM_THREADS": "2"}, {"OMP_NUM_THREADS": "1"}
    assert run(one, two, two, one, two) == ["1 1", "1 2", "1 2", "1 1", "1 2"]


def test_without_numpy_nothing_happens():
    code = "from windlass.agent.forkserver.openblas import Threads; print(Threads().set_for({}))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "None", answer.stderr

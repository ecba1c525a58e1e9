"""OpenBLAS is loaded with one thread, and gets back what it would have had."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import os
os.environ["OPENBLAS_NUM_THREADS"] = "1"
import numpy as np
assert len(os.listdir("/proc/self/task")) == 1
del os.environ["OPENBLAS_NUM_THREADS"]
os.environ.update({env!r})
from windlass.agent.openblas import restore_threads
restore_threads()
a = np.ones((600, 600)); a @ a
print(len(os.listdir("/proc/self/task")))
"""

CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
@pytest.mark.parametrize(
    ("env", "num_threads"),
    [
        ({}, CORES),
        ({"OMP_NUM_THREADS": "1"}, 1),
        ({"OMP_NUM_THREADS": "2"}, 2),
        ({"OMP_NUM_THREADS": "4,2"}, CORES),
        ({"OPENBLAS_NUM_THREADS": "1"}, 1),  # the user's own word: left alone
    ],
    ids=str,
)
def test_threads(env, num_threads):
    environ = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
    answer = subprocess.run(
        [sys.executable, "-c", CODE.format(env=env)], capture_output=True, text=True, env=environ
    )
    assert answer.stdout.strip() == str(num_threads), answer.stderr


def test_without_numpy_nothing_happens():
    code = "from windlass.agent.openblas import restore_threads; print(restore_threads())"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.strip() == "None", answer.stderr

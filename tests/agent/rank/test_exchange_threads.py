"""Ranks that exit right after an exchange: torch's threads are done before the interpreter exits."""

from __future__ import annotations

import sys

import pytest

import windlass as wl

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(sys.platform != "linux", reason="threads are put last by Linux's calls"),
]

# An exit handler, because a finished rank waits for its peers, and its threads proceed meanwhile.
SCRIPT = """
import atexit, os, threading
import torch, torch.distributed

def exchange():
    torch.distributed.all_reduce(torch.ones(1))

atexit.register(exchange)
torch.distributed.init_process_group("gloo")
exchange()
core = {min(os.sched_getaffinity(0))}
for task in map(int, os.listdir("/proc/self/task")):
    os.sched_setaffinity(task, core)
    if task != threading.get_native_id():
        os.sched_setscheduler(task, os.SCHED_IDLE, os.sched_param(0))
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_the_last_exchange_of_a_rank_does_not_abort_it(start, home, tmp_path, monkeypatch):
    """Without the fix, four of five such jobs fail with SIGABRT, so three runs are enough."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "windlass.toml").touch()
    (tmp_path / "script.py").write_text(SCRIPT)
    for _ in range(3):
        assert wl.run("script.py", procs=2, start=start, quiet=True) == [None, None]

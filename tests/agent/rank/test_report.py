"""`wl.report`: it does nothing outside a job, is rate-limited inside one, and keeps the last report."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

import windlass as wl
from windlass import names
from windlass.wire import rank_reports as module


@pytest.fixture
def agent(monkeypatch):
    """Yield an agent's socket, in a process that `wl.report` takes for a rank."""
    monkeypatch.setattr(module, "_reporter", None)
    with tempfile.TemporaryDirectory(prefix="wl") as folder:
        path = Path(folder) / "node.sock"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
            sock.bind(str(path))
            sock.setblocking(False)
            monkeypatch.setenv(names.REPORT_SOCKET, str(path))
            monkeypatch.setenv(names.RANK, "3")
            monkeypatch.setenv(names.ATTEMPT, "1")
            yield sock
    reporter = module._reporter
    if reporter is not None and reporter.socket is not None:
        reporter.pending = []
        reporter.socket.close()
    module._reporter = None


def read_messages(sock):
    messages = []
    while True:
        try:
            messages.append(json.loads(sock.recv(1 << 16)))
        except BlockingIOError:
            return messages


def test_outside_a_job_nothing_happens(monkeypatch):
    monkeypatch.setattr(module, "_reporter", None)
    assert wl.report(step=1, total=2, loss=object()) is None
    assert module._reporter.socket is None
    assert module._reporter.pending == []


def test_report_has_rank_attempt_and_metrics(agent):
    before_s = time.time()
    wl.report(step=3, total=10, loss=0.25, name="x", done=False, nothing=None)
    [message] = read_messages(agent)
    assert before_s - 1 <= message.pop("at_s") <= time.time() + 1
    assert message == {
        "type": "report",
        "rank": 3,
        "attempt": 1,
        "step": 3,
        "total": 10,
        "metrics": {"loss": 0.25, "name": "x", "done": False, "nothing": None},
    }


@pytest.mark.parametrize("with_step", [True, False])
def test_many_reports_are_rate_limited(agent, with_step):
    started_s = time.monotonic()
    for step in range(2000):
        wl.report(**({"step": step, "total": 5000} if with_step else {}), loss=step)
    passed_s = time.monotonic() - started_s
    num_messages = len(read_messages(agent))
    assert 1 <= num_messages <= 10 * passed_s + 2


def test_skipped_values_come_with_the_next_report(agent):
    wl.report(step=1, total=10, first=1)
    wl.report(step=2, second=2)
    wl.report(third=3)
    assert len(read_messages(agent)) == 1
    wl.report(step=3)
    module._reporter.flush()
    message, last = read_messages(agent)
    assert (message["step"], message["total"]) == (2, 10)
    assert message["metrics"] == {"second": 2, "third": 3}
    assert (last["step"], last["metrics"]) == (3, {})  # it has no value of another step
    module._reporter.flush()
    assert read_messages(agent) == []


def test_last_step_is_never_skipped(agent):
    for step in range(1, 51):
        wl.report(step=step, total=50)
    assert read_messages(agent)[-1]["step"] == 50


def test_tensors_and_other_things(agent):
    import numpy as np
    import torch

    wl.report(
        step=torch.tensor(4),
        total=np.int64(9),
        loss=torch.tensor(0.5),
        vector=torch.ones(2),
        count=np.int64(7),
        what=Path("/x"),
        nan=float("nan"),
    )
    [message] = read_messages(agent)
    assert (message["step"], message["total"]) == (4, 9)
    metrics = message["metrics"]
    assert (metrics["loss"], metrics["count"], metrics["what"]) == (0.5, 7, "/x")
    assert metrics["vector"].startswith("tensor")
    assert metrics["nan"] != metrics["nan"]


def test_misuse_raises(agent):
    with pytest.raises((TypeError, ValueError)):
        wl.report(step="three")


def test_a_report_too_large_is_dropped_and_the_next_goes_through(agent):
    wl.report(step=1, text="x" * 100_000)
    assert read_messages(agent) == []
    module._reporter.sent_at_s = 0.0
    wl.report(step=2)
    [message] = read_messages(agent)
    assert (message["step"], message["metrics"]) == (2, {})


def test_full_socket_does_not_block_and_gets_the_report_later(agent):
    for _ in range(10_000):
        module._reporter and setattr(module._reporter, "sent_at_s", 0.0)
        wl.report(step=1, loss=0.5)
        if module._reporter.pending:
            break
    assert module._reporter.pending
    assert read_messages(agent)
    module._reporter.flush()
    assert len(read_messages(agent)) == 1


def test_missing_agent_is_not_an_error(agent, monkeypatch):
    monkeypatch.setenv(names.REPORT_SOCKET, "/nowhere/node.sock")
    assert wl.report(step=1) is None
    assert module._reporter.pending == []


def test_a_forked_child_reports_for_itself(agent):
    wl.report(step=1, total=9)
    wl.report(step=2, total=9)  # skipped, and pending in the parent
    pid = os.fork()
    if pid == 0:
        wl.report(step=7)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert [message["step"] for message in read_messages(agent)] == [1, 7]
    module._reporter.flush()
    assert [message["step"] for message in read_messages(agent)] == [2]


def test_the_last_report_is_flushed_at_exit(agent):
    code = (
        "import windlass as wl\nfor step in range(1, 8): wl.report(step=step, total=100, loss=step)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    messages = read_messages(agent)
    assert [messages[0]["step"], messages[-1]["step"]] == [1, 7]
    assert messages[-1]["metrics"] == {"loss": 7}

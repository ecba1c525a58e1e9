"""Kueue's reasons for not admitting a Job, explained in plain words. The quoted sentences are Kueue's own."""

from __future__ import annotations

from typing import Any

import pytest
from kube.recorded import find_blockers

from windlass import names
from windlass.kube.diagnosis.blocker import NOT_ADMITTED, QUEUE_MISSING, QUEUE_TOO_SMALL, Blocker

HEAD = "couldn't assign flavors to pod set main: "
OVER = (
    "insufficient quota for {} in flavor {}, previously considered podsets requests (0) + "
    "current podset request ({}) > maximum capacity ({})"
)
BUSY = "insufficient unused quota for {} in flavor {}, 1 more needed"
JOB = {
    "metadata": {"name": "a", "labels": {names.LABEL_QUEUE: "team"}},
    "spec": {"suspend": True},
}


def read_blocker(message: str = "", **more: Any) -> Blocker:
    event = {
        "reason": "Pending",
        "message": message,
        "involvedObject": {"kind": "Workload", "name": "job-a-1a2b3"},
    }
    (found,) = find_blockers(JOB, [], [event] if message else [], **more)
    return found


@pytest.mark.parametrize(
    ("message", "words", "flag"),
    [
        (
            OVER.format("cpu", "f", "8", "1"),
            "8 cpu in total, but the queue's total quota is 1",
            "--cpus",
        ),
        (
            "insufficient quota for memory in flavor f, request > maximum capacity (8Gi > 2Gi)",
            "8Gi memory in total, but the queue's total quota is 2Gi",
            "--memory",
        ),
        (
            "resource nvidia.com/gpu unavailable in ClusterQueue",
            "the queue has no quota for nvidia.com/gpu",
            "--gpus",
        ),
        (
            f"{BUSY.format('cpu', 'f')}, {OVER.format('memory', 'f', '8Gi', '2Gi')}",
            "8Gi memory in total",
            "--memory",
        ),
    ],
)
def test_request_above_the_whole_quota_never_starts(message: str, words: str, flag: str) -> None:
    found = read_blocker(HEAD + message)
    assert (found.reason, found.is_hopeless) == (QUEUE_TOO_SMALL, True)
    assert found.message.startswith('it will never start in the queue "team": ')
    assert words in found.message
    assert flag in found.hint


@pytest.mark.parametrize(
    "message",
    [
        BUSY.format("cpu", "f"),
        f"{OVER.format('cpu', 'small', '8', '1')}, {BUSY.format('cpu', 'big')}",
        "something that no rule knows",
    ],
)
def test_job_waits_if_the_quota_is_only_in_use(message: str) -> None:
    found = read_blocker(HEAD + message)
    assert (found.reason, found.is_hopeless) == (NOT_ADMITTED, False)
    assert found.message == f'it waits in the queue "team": {HEAD}{message}'


def test_missing_queue() -> None:
    found = read_blocker(queues=["b", "a"])
    assert (found.reason, found.is_hopeless) == (QUEUE_MISSING, True)
    assert found.message == 'queue "team" not found in the job\'s namespace; available: a, b'
    many = read_blocker(queues=[f"q{n:02}" for n in range(20)])
    assert many.message.endswith("q07 and 12 more")
    none = read_blocker(queues=[])
    assert none.message.endswith("; it has no queues")
    assert "Kueue" in none.hint


def test_existing_queue_and_queues_that_may_not_be_listed() -> None:
    assert read_blocker(queues=["team"]).reason == NOT_ADMITTED
    assert read_blocker(queues=None).message == 'it waits in the queue "team"'

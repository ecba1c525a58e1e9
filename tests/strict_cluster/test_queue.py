"""A job in a Kueue queue, which Kueue resumes instead of Windlass. Skipped if Kueue is not installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_objects import open_queue
from strict_cluster.conftest import Become
from strict_cluster.ground import Ground, wait_for, without_right

import windlass as wl
from windlass.kube.diagnosis import blocker as reasons
from windlass.observe.explain import Why, explain

pytestmark = pytest.mark.cluster


@pytest.fixture
def queue(plain: Ground) -> Iterator[str]:
    """Create a queue of this namespace with room for two small pods."""
    with open_queue(plain.api) as name:
        yield name


def test_kueue_admits_a_job(plain: Ground, queue: str) -> None:
    settings = {"queue": queue, "cpus": "250m", "memory": "512Mi"}
    job = wl.submit("work.py::hello", nodes=2, **settings)
    assert job.results(timeout_s=180) == ["hello", "hello"]


def test_request_above_the_quota_never_starts(plain: Ground, queue: str) -> None:
    job = wl.submit(["true"], queue=queue, cpus="8", memory="512Mi")
    found = _wait_for_blocker(job, reasons.QUEUE_TOO_SMALL)
    assert f'it will never start in the queue "{queue}"' in found.sentence
    assert "it requests 8 cpu in total, but the queue's total quota is 1" in found.sentence
    assert "--cpus" in found.next
    assert "--queue" in found.next
    _end(plain, job)


def test_resource_without_a_quota(plain: Ground, queue: str) -> None:
    job = wl.submit(["true"], queue=queue, gpus=1, cpus="250m", memory="512Mi")
    found = _wait_for_blocker(job, reasons.QUEUE_TOO_SMALL)
    assert "the queue has no quota for nvidia.com/gpu" in found.sentence
    _end(plain, job)


def test_waiting_job_shows_the_reason(plain: Ground, queue: str) -> None:
    settings = {"queue": queue, "cpus": "1", "memory": "512Mi"}
    first = wl.submit("work.py::stay", **settings)
    wait_for(lambda: any(line.text == "up" for line in first.logs()), "the first one is up")
    second = wl.submit(["true"], **settings)
    found = _wait_for_blocker(second, reasons.NOT_ADMITTED)
    assert f'it waits in the queue "{queue}": ' in found.sentence
    _end(plain, second)
    _end(plain, first)


def test_missing_queue(plain: Ground, queue: str) -> None:
    job = wl.submit(["true"], queue="absent", cpus="250m", memory="512Mi")
    found = _wait_for_blocker(job, reasons.QUEUE_MISSING)
    assert 'queue "absent" not found in the job\'s namespace; available: ' in found.sentence
    assert queue in found.sentence
    _end(plain, job)


def test_reason_without_the_right_to_list_queues(
    plain_ground: Ground, queue: str, become: Become, tmp_path: Path
) -> None:
    user = plain_ground.add_user(tmp_path / "user", without_right("list", "localqueues"))
    become(plain_ground, user)
    job = wl.submit(["true"], queue="absent", cpus="250m", memory="512Mi")
    found = _wait_for_blocker(job, reasons.NOT_ADMITTED)
    assert 'it waits in the queue "absent"' in found.sentence
    _end(plain_ground, job)


def _wait_for_blocker(job: wl.Job, reason: str) -> Why:
    def is_named() -> bool:
        return any(one.reason == reason for one in job.status().conditions)

    wait_for(is_named, f"{reason} is named", 60.0)
    found = explain(job.status(), now_s=time.time())
    assert found.reason == reason
    return found


def _end(ground: Ground, job: wl.Job) -> None:
    job.cancel(now=True)
    job.wait(30)
    ground.wait_for_nothing(job.id)

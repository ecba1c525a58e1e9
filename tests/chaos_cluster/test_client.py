"""Tests in which the client is killed, is interrupted or cancels the job.

The job must end and leave nothing behind.
"""

from __future__ import annotations

import signal
import time

import pytest
from chaos_cluster.clients import find_job, run_client, run_windlass, wait_for_line
from chaos_cluster.ground import Ground, wait_for
from chaos_cluster.trained import check_results, wait_for_step

import windlass as wl
from windlass import names

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
LEASE_S = 5


def _has_live_pods(ground: Ground, job: str) -> bool:
    return any(pod["status"].get("phase") in ("Pending", "Running") for pod in ground.pods(job))


def test_killed_attached_client(ground):
    with run_client(ground, "--lease", f"{LEASE_S}", "--", "--total", "5000") as client:
        job = find_job(ground)
        wait_for_line(ground, job, "step 10")
        client.kill()
        killed_s = time.time()
    wait_for(lambda: not _has_live_pods(ground, job), "its pods have ended", 60)
    status = wl.attach(f"kubernetes://{ground.api.namespace}/{job}").status()
    assert status.phase.value == "cancelled"
    assert f"its client has been gone for {LEASE_S} s" in status.verdict.message
    after_s = status.verdict.at_s - killed_s
    print(f"ended {after_s:.1f} s after its client")
    assert LEASE_S - 1 <= after_s <= LEASE_S + 20
    assert len(ground.pods(job)) <= 2  # no pod was replaced


def test_ctrl_c(ground):
    with run_client(ground, "--", "--total", "5000") as client:
        job = find_job(ground)
        wait_for_line(ground, job, "step 10")
        client.send_signal(signal.SIGINT)
        _, err = client.communicate(timeout=60)
    assert client.returncode == names.EXIT_INTERRUPTED, err
    assert "Ctrl-C" in err
    ground.wait_for_nothing(job)


def test_ctrl_c_before_the_pods_run(ground):
    with run_client(ground, "--node-selector", "no-such=node") as client:
        job = find_job(ground)
        wait_for(lambda: len(ground.pods(job)) == 2, "its pods wait")
        client.send_signal(signal.SIGINT)
        _, err = client.communicate(timeout=60)
    assert client.returncode == names.EXIT_INTERRUPTED, err
    ground.wait_for_nothing(job)


def test_cancel(ground):
    job = ground.train({"total": 5000})
    wait_for_step(job, 10)
    done = run_windlass("cancel", job.id)
    assert done.returncode == 0, done.stderr
    assert job.wait(30).phase.value == "cancelled"
    ground.wait_for_nothing(job.id)


def test_remove(ground):
    job = ground.train({"total": 20})
    check_results(job.results(timeout_s=120), total=20)
    assert ground.left(job.id)
    done = run_windlass("rm", job.id)
    assert done.returncode == 0, done.stderr
    ground.wait_for_nothing(job.id)

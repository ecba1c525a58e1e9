"""The API server is gone for two minutes: the training does not notice, and its client waits for it."""

from __future__ import annotations

import time

import pytest
from chaos_cluster.clients import find_job, run_client, wait_for_line
from chaos_cluster.trained import check_results, read_times

import windlass as wl
from windlass.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(480)]
GONE_S = 120.0
TOTAL = 800
PACE_S = 0.2


def test_two_minutes_without_an_api_server(ground, testbed):
    words = ("--total", f"{TOTAL}", "--pace-s", f"{PACE_S}")
    with run_client(ground, "--", *words) as client:
        job_id = find_job(ground)
        wait_for_line(ground, job_id, "step 10")
        before = ground.uids(job_id)
        testbed.kill_api_server()
        gone_s = time.time()
        # How long it is gone is the point; a client that gives up ends the wait.
        assert not wait_until(lambda: client.poll() is not None, timeout_s=GONE_S), "it gave up"
        testbed.start_api_server()
        back_s = time.time()
        said, connection = client.communicate(timeout=240)
    assert client.returncode == 0, connection
    job = wl.attach(f"kubernetes://{ground.api.namespace}/{job_id}")
    results = job.results(timeout_s=60)
    assert sorted(check_results(results, total=TOTAL)) == [0]
    meanwhile = [at_s for at_s in read_times(results) if gone_s < at_s < back_s]
    print(f"{len(meanwhile) // 2} steps in the {back_s - gone_s:.0f} s without an API server")
    assert len(meanwhile) / 2 > 0.5 * GONE_S / PACE_S
    assert ground.uids(job_id) == before
    for step in range(5, TOTAL + 1, 5):
        assert said.count(f"step {step}\n") == 2, step  # once a rank: nothing lost, nothing twice

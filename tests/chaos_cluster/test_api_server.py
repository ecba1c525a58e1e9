"""The API server is unavailable for up to two minutes. The training continues, and its client waits."""

from __future__ import annotations

import time

import pytest
from chaos_cluster.clients import find_job, run_client, wait_for_line
from chaos_cluster.trained import check_results, read_times

import windlass as wl
from windlass.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(480)]
PACE_S = 0.2


@pytest.mark.parametrize(
    ("ground", "gone_s"),
    [("kubernetes", 120.0), ("trainjob", 60.0), ("pytorchjob", 60.0)],
    indirect=["ground"],
)
def test_training_continues_without_an_api_server(ground, testbed, gone_s):
    total = round((gone_s + 40.0) / PACE_S)
    words = ("--total", f"{total}", "--pace-s", f"{PACE_S}")
    with run_client(ground, "--", *words) as client:
        job_id = find_job(ground)
        wait_for_line(ground, job_id, "step 10")
        before = ground.uids(job_id)
        testbed.kill_api_server()
        since_s = time.time()
        # Waits for the whole outage, unless the client gives up.
        assert not wait_until(lambda: client.poll() is not None, timeout_s=gone_s), "it gave up"
        testbed.start_api_server()
        back_s = time.time()
        out, err = client.communicate(timeout=240)
    assert client.returncode == 0, err
    job = wl.attach(f"{ground.dialect.name}://{ground.api.namespace}/{job_id}")
    results = job.results(timeout_s=60)
    assert sorted(check_results(results, total=total)) == [0]
    meanwhile = [at_s for at_s in read_times(results) if since_s < at_s < back_s]
    print(f"{len(meanwhile) // 2} steps in the {back_s - since_s:.0f} s without an API server")
    assert len(meanwhile) / 2 > 0.5 * gone_s / PACE_S
    assert ground.uids(job_id) == before
    for step in range(5, total + 1, 5):
        # once per rank, so no line is lost or duplicated
        assert out.count(f"step {step}\n") == 2, step
    ground.check_object(job_id, is_complete=True)

"""Out of memory, in one rank and in a whole container. Both are reported as such."""

from __future__ import annotations

import pytest
from chaos_cluster.trained import check_results, wait_for_step

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
TOTAL = 60


def test_rank_out_of_memory(ground):
    fault = {"rank": 1, "attempt": 0, "step": 12, "how": "eats memory"}
    job = ground.train({"total": TOTAL, "fault": fault}, restarts=1, memory="600Mi")
    wait_for_step(job, 1)
    before = ground.uids(job.id)
    results = job.results(timeout_s=150)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.rank, verdict.node) == ("out of memory", 1, 1), verdict
    check_results(results, total=TOTAL)
    assert ground.uids(job.id) == before


def test_container_out_of_memory(ground):
    fault = {"rank": 1, "attempt": 0, "step": 12, "how": "eats the container's memory"}
    # with both limits, the kernel spares the pod's processes, except the one with the raised oom_score_adj
    job = ground.train({"total": TOTAL, "fault": fault}, memory="600Mi", cpus="1")
    wait_for_step(job, 1)
    pod = ground.live_pod(job.id, 1)
    results = job.results(timeout_s=150)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node) == ("out of memory", 1), verdict
    assert f"on node {pod['spec']['nodeName']} ran out of memory" in verdict.message, verdict
    assert "600Mi" in verdict.message
    check_results(results, total=TOTAL)

"""A pod evicted by its node or an admin is reported as evicted, with the node's name. Training continues."""

from __future__ import annotations

import pytest
from chaos_cluster.trained import check_results, wait_for_step

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
TOTAL = 60


@pytest.mark.parametrize("node", [1, 0])
def test_drained_node(ground, node):
    job = ground.train({"total": TOTAL})
    wait_for_step(job, 12)
    pod = ground.evict_pod(job.id, node)
    results = job.results(timeout_s=150)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node) == ("lost node", node), verdict
    assert f"on node {pod['spec']['nodeName']} was evicted" in verdict.message, verdict
    assert "drained" in verdict.message
    check_results(results, total=TOTAL)


def test_pod_over_its_storage_limit(ground):
    fault = {"rank": 1, "attempt": 0, "step": 12, "how": "eats disk"}
    job = ground.train({"total": TOTAL, "fault": fault}, ephemeral_storage="40Mi")
    wait_for_step(job, 1)
    pod = ground.live_pod(job.id, 1)
    results = job.results(timeout_s=170)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node) == ("lost node", 1), verdict
    assert f"on node {pod['spec']['nodeName']} was evicted" in verdict.message, verdict
    assert "exceeded its storage limit" in verdict.message
    check_results(results, total=TOTAL)

"""A node is lost repeatedly. Its budget is respected, and Kubernetes' own back-off is measured."""

from __future__ import annotations

import time

import pytest
from chaos_cluster.ground import Ground, wait_for
from chaos_cluster.trained import check_results, wait_for_step

import windlass as wl
from windlass.kube.objects.fields import created_s
from windlass.kube.objects.kinds import JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(420)]
TOTAL = 120


def _lose(ground: Ground, job: wl.Job, *, attempt: int) -> float:
    """Delete node 1's pod during training, and return when."""
    wait_for_step(job, attempt * 10 + 12, attempt=attempt)
    ground.delete_pod(job.id, 1)
    return time.time()


def test_losses_within_the_budget(ground):
    job = ground.train({"total": TOTAL})
    for attempt in range(3):
        lost_s = _lose(ground, job, attempt=attempt)
        seen = ground.uids(job.id)
        wait_for(lambda seen=seen: bool(ground.uids(job.id) - seen), "another pod")
        pod = ground.pods(job.id, 1)[-1]
        wait_s = created_s(pod) - lost_s
        print(f"loss {attempt + 1}: Kubernetes replaced the pod after {wait_s:.0f} s")
    results = job.results(timeout_s=180)
    status = job.status()
    found = [(verdict.kind.value, verdict.node, verdict.attempt) for verdict in status.history]
    assert found == [("lost node", 1, attempt) for attempt in range(3)]
    assert status.attempt == 3
    assert sorted(check_results(results, total=TOTAL)) == [0, 1, 2, 3]


def test_loss_above_the_budget(ground):
    job = ground.train({"total": TOTAL}, node_restarts=1)
    _lose(ground, job, attempt=0)
    _lose(ground, job, attempt=1)
    status = job.wait(60)
    assert status.phase.value == "failed"
    assert [verdict.attempt for verdict in status.history] == [0]
    verdict = status.verdict
    assert (verdict.kind.value, verdict.node, verdict.attempt) == ("lost node", 1, 1)
    with pytest.raises(wl.NodeLost):
        job.results()

    def has_ended() -> bool:
        conditions = ground.api.get(JOBS, job.id)["status"].get("conditions") or ()
        return any(c["type"] in ("Complete", "Failed") for c in conditions)

    wait_for(has_ended, "the Job has ended", 60)
    assert len(ground.pods(job.id, 1)) <= 2

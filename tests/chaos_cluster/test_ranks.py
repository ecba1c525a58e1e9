"""Killed and failing ranks: the pods stay, and a restart forks the ranks of the next attempt."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
from chaos_cluster.ground import on_every_engine
from chaos_cluster.trained import check_results, wait_for_step

from windlass import names
from windlass.kube.objects.kinds import PODS

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]


@pytest.mark.parametrize(("how", "by"), [("is killed", 3), ("kills its neighbor", 2)])
@on_every_engine
def test_killed_rank(ground, how, by):
    fault = {"rank": by, "attempt": 0, "step": 23, "how": how}
    job = ground.train({"total": 60, "fault": fault}, procs=2, restarts=1)
    wait_for_step(job, 1)
    before = ground.uids(job.id)
    results = job.results(timeout_s=120)
    status = job.status()
    (verdict,) = status.history
    assert (verdict.kind.value, verdict.signal) == ("killed by a signal", "SIGKILL")
    assert (verdict.rank, verdict.node, verdict.attempt) == (3, 1, 0)
    assert sum(verdict.others.values()) == 3
    spans = check_results(results, total=60)
    assert [result["start"] for result in results] == [20] * 4
    assert sorted(spans) == [0, 1]
    assert len(before) == 2
    assert ground.uids(job.id) == before
    gap_s = spans[1].stepped_s - verdict.at_s
    ground.check_object(job.id, is_complete=True)
    print(f"from SIGKILL to all ranks stepping again: {gap_s:.2f} s")


@on_every_engine
def test_user_error_is_final(ground):
    fault = {"rank": 1, "attempt": 0, "step": 7, "how": "raises"}
    job = ground.train({"total": 60, "fault": fault})
    with pytest.raises(ValueError, match="this training is wrong"):
        job.results(timeout_s=120)
    verdict = job.verdict()
    assert (verdict.kind.value, verdict.rank, verdict.node) == ("user error", 1, 1)
    assert "training.py" in verdict.where
    waited = subprocess.run(
        [sys.executable, "-m", "windlass.cli.main", "wait", job.id], capture_output=True, text=True
    )
    assert waited.returncode == names.EXIT_JOB_FAILED, waited.stderr
    before = ground.uids(job.id)
    assert len(before) == 2
    labels = f"{names.LABEL_JOB}={job.id}"
    # Only waiting shows that no pod is created. The Job controller's first back-off is 10 s.
    watched = ground.api.watch(PODS, labels=labels, stop=threading.Event(), timeout_s=20)
    seen = {pod["metadata"]["uid"] for event, pod in watched if event != "SYNCED"}
    assert seen <= before
    # an Indexed Job would replace failed pods, so there only Windlass reports the failure
    ground.check_object(job.id, is_complete=ground.dialect.name == "kubernetes")

"""A pod is deleted during training. It is noticed immediately, replaced, and resumed, and no log is lost."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from chaos_cluster.clients import run_windlass, wait_for_line
from chaos_cluster.ground import Ground, on_every_engine
from chaos_cluster.trained import check_results, measure, wait_for_step

import windlass as wl
from windlass import names
from windlass.wire.status import JobStatus

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
TOTAL = 100


@pytest.mark.parametrize("now", [False, True], ids=["politely", "by force"])
@pytest.mark.parametrize("node", [1, 0])
@on_every_engine
def test_deleted_pod(ground, node, now):
    job = ground.train({"total": TOTAL}, procs=2)
    wait_for_step(job, 12)
    before = ground.uids(job.id)
    ground.delete_pod(job.id, node, now=now)
    seen_s = measure(job, lambda status: status.attempt == 1 or bool(status.history))
    again_s = measure(job, lambda status: status.attempt == 1 and status.progress.step is not None)
    results = job.results(timeout_s=120)
    status = job.status()
    print(f"node {node}: seen after {seen_s:.1f} s, stepping again {again_s:.1f} s later")
    (verdict,) = status.history
    assert (verdict.kind.value, verdict.node, verdict.attempt) == ("lost node", node, 0), verdict
    assert status.attempt == 1
    spans = check_results(results, total=TOTAL)
    assert sorted(spans) == [0, 1]
    assert spans[1].first_step >= 10
    assert len(ground.uids(job.id) - before) == 1
    _check_logs(job, spans[1].first_step)
    ground.check_object(job.id, is_complete=True)


@pytest.mark.parametrize("ground", ["kubernetes", "trainjob"], indirect=True)
def test_deleted_only_pod(ground):
    """No other pod can remember the loss, so the replacement learns it from the Job."""
    job = ground.train({"total": TOTAL}, nodes=1)
    wait_for_step(job, 12)
    ground.delete_pod(job.id, 0)
    results = job.results(timeout_s=120)
    status = job.status()
    assert [(verdict.kind.value, verdict.node) for verdict in status.history] == [("lost node", 0)]
    assert status.attempt == 1
    assert sorted(check_results(results, total=TOTAL)) == [0, 1]
    ground.check_object(job.id, is_complete=True)


def _warns_of_forgotten_loss(status: JobStatus) -> bool:
    return any(c.reason == names.REASON_LOSS_FORGOTTEN for c in status.conditions)


@pytest.mark.parametrize("ground", ["pytorchjob"], indirect=True)
def test_deleted_only_pod_of_a_kind_without_a_count(ground):
    """It starts as attempt 0 again, from its checkpoint. Every client is warned."""
    job = ground.train({"total": 400}, nodes=1)
    wait_for_step(job, 12)
    ground.delete_pod(job.id, 0)
    measure(job, _warns_of_forgotten_loss)
    why = run_windlass("why", job.id)  # another client, which was not watching
    assert "its pod was replaced" in why.stdout, why
    results = job.results(timeout_s=120)
    assert results[0]["start"] >= 10
    status = job.status()
    assert (status.attempt, status.history) == (0, ())
    assert sorted(check_results(results, total=400)) == [0]
    ground.check_object(job.id, is_complete=True)


def test_log_of_node_0_without_a_client(ground):
    """No client is running when node 0 is lost. Node 1 keeps a copy of its log for the next client."""
    job_id = _submit_from_another_process(ground)
    wait_for_line(ground, job_id, "step 15")
    ground.delete_pod(job_id, 0, now=True)
    wait_for_line(ground, job_id, "attempt 1 starts")
    job = wl.attach(f"kubernetes://{ground.api.namespace}/{job_id}")
    results = job.results(timeout_s=120)
    spans = check_results(results, total=TOTAL)
    assert job.status().history[0].node == 0
    _check_logs(job, spans[1].first_step)


def _check_logs(job: wl.Job, resumed_at: int) -> None:
    """Check that the lines of both attempts of every rank are in the log."""
    for rank in range(4):
        first = [line.text for line in job.logs(attempt=0, rank=rank)]
        second = [line.text for line in job.logs(attempt=1, rank=rank)]
        assert "attempt 0 starts at step 0" in first, (rank, first)
        assert "step 10" in first, (rank, first)
        assert f"attempt 1 starts at step {resumed_at}" in second, (rank, second)
        assert f"step {TOTAL}" in second, (rank, second)


_SUBMIT = """
import json, sys, windlass as wl
settings = json.loads(sys.argv[1])
print(wl.submit("training.py::train", kwargs=settings.pop("kwargs"), **settings).id)
"""


def _submit_from_another_process(ground: Ground) -> str:
    """Submit in a client that exits immediately, and return the job's id."""
    asked = {"nodes": 2, "procs": 2, "kwargs": {"total": TOTAL}, **ground.settings}
    done = subprocess.run(
        [sys.executable, "-c", _SUBMIT, json.dumps(asked)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()

"""An operator is unavailable for a while. Running jobs continue, and their status is correct later."""

from __future__ import annotations

import pytest
from chaos_cluster.clients import find_job, run_client, run_windlass
from chaos_cluster.ground import Ground, wait_for
from chaos_cluster.trained import check_results, measure, wait_for_step

from windlass.errors import WindlassError

pytestmark = [pytest.mark.cluster, pytest.mark.chaos, pytest.mark.timeout(300)]
PROGRAMS = {"trainjob": ("jobset", "trainer"), "pytorchjob": ("training-operator",)}
on_operators = pytest.mark.parametrize("ground", list(PROGRAMS), indirect=True)
TOTAL = 100


def _programs(ground: Ground) -> tuple[str, ...]:
    return PROGRAMS[ground.dialect.name]


def _count_running(ground: Ground, job: str) -> int:
    return sum(pod["status"].get("phase") == "Running" for pod in ground.pods(job))


@on_operators
def test_pod_lost_while_its_operator_is_down(ground, testbed):
    job = ground.train({"total": TOTAL})
    wait_for_step(job, 12)
    testbed.kill_operator(*_programs(ground))
    before = ground.uids(job.id)
    ground.delete_pod(job.id, 1)
    measure(job, lambda status: bool(status.history))
    wait_for(lambda: _count_running(ground, job.id) == 1, "the pod has ended")
    assert ground.uids(job.id) <= before, "no other pod is created"
    assert not job.status().phase.is_final
    testbed.start_operator(*_programs(ground))
    results = job.results(timeout_s=180)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node) == ("lost node", 1), verdict
    assert sorted(check_results(results, total=TOTAL)) == [0, 1]
    ground.check_object(job.id, is_complete=True)


@pytest.mark.parametrize("how", ["succeeds", "raises"])
@on_operators
def test_job_that_ends_while_its_operator_is_down(ground, testbed, how):
    fault = {"rank": 1, "attempt": 0, "step": 30, "how": how} if how == "raises" else None
    job = ground.train({"total": 60, "fault": fault})
    wait_for_step(job, 12)
    testbed.kill_operator(*_programs(ground))
    phase = job.wait(90).phase.value
    assert phase == ("failed" if how == "raises" else "succeeded")
    if how == "succeeds":
        check_results(job.results(), total=60)
    testbed.start_operator(*_programs(ground))
    ground.check_object(job.id, is_complete=how == "succeeds")


@on_operators
def test_submit_while_the_operator_is_down(ground, testbed):
    """Its webhook cannot be called. The error reports this with a hint, and nothing is left."""
    testbed.kill_operator(*_programs(ground))
    with pytest.raises(WindlassError) as caught:
        ground.train({"total": 10})
    assert "webhook" in caught.value.message
    assert "kubeflow" in caught.value.message
    assert "may be down" in caught.value.hint
    assert "--engine kubernetes" in caught.value.hint
    assert [ground.api.list(kind) for kind in ground.kinds[:1]] == [[]]
    testbed.start_operator(*_programs(ground))
    job = ground.train({"total": 10})
    check_results(job.results(timeout_s=120), total=10)


@pytest.mark.parametrize("ground", ["trainjob"], indirect=True)
def test_accepted_object_without_pods(ground, testbed):
    """JobSet is down, but Trainer is not. It accepts the TrainJob and cannot create its pods."""
    reason = "Kubeflow Trainer has not made the pods"
    testbed.kill_operator("jobset")
    with run_client(ground, "--", "--total", "10") as client:
        assert client.stderr is not None
        assert any(reason in line for line in client.stderr), "the waiting client reports it"
        why = run_windlass("why", find_job(ground))
        assert why.returncode == 0, why.stderr
        assert reason in why.stdout
        testbed.start_operator("jobset")
        _, err = client.communicate(timeout=150)
    assert client.returncode == 0, err

"""An operator that is away for a while: what runs goes on, and its status comes to be true."""

from __future__ import annotations

import pytest
from chaos_cluster.clients import ask, find_job, run_client
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
def test_a_pod_lost_while_its_operator_is_away(ground, testbed):
    job = ground.train({"total": TOTAL})
    wait_for_step(job, 12)
    testbed.kill_operator(*_programs(ground))
    before = ground.uids(job.id)
    ground.delete_pod(job.id, 1)
    measure(job, lambda status: bool(status.history))
    wait_for(lambda: _count_running(ground, job.id) == 1, "the pod has ended")
    assert ground.uids(job.id) <= before, "nobody makes another"
    assert not job.status().phase.is_final
    testbed.start_operator(*_programs(ground))
    results = job.results(timeout_s=180)
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node) == ("lost node", 1), verdict
    assert sorted(check_results(results, total=TOTAL)) == [0, 1]
    ground.check_object(job.id, is_complete=True)


@pytest.mark.parametrize("how", ["succeeds", "raises"])
@on_operators
def test_a_job_that_ends_while_its_operator_is_away(ground, testbed, how):
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
def test_a_submit_while_the_operator_is_away(ground, testbed):
    """Its webhook cannot be called: that is said, with what to do, and nothing is left."""
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
def test_an_object_that_was_accepted_and_has_no_pods(ground, testbed):
    """JobSet is away, Trainer is not: it takes the TrainJob and cannot carry it out."""
    told = "Kubeflow Trainer has not made the pods"
    testbed.kill_operator("jobset")
    with run_client(ground, "--", "--total", "10") as client:
        assert client.stderr is not None
        assert any(told in line for line in client.stderr), "the client that waits says so"
        why = ask("why", find_job(ground))
        assert why.returncode == 0, why.stderr
        assert told in why.stdout
        testbed.start_operator("jobset")
        _, said = client.communicate(timeout=150)
    assert client.returncode == 0, said

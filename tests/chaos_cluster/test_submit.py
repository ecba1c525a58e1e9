"""The client is killed with SIGKILL at each step of its submit. Everything it leaves can be collected."""

from __future__ import annotations

import pytest
from chaos_cluster.clients import find_job, run_client, run_windlass, watch_created_objects

from windlass.kube.objects.kinds import JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
# The Job, its claim, policy, Secret and two Services, then its two pods.
STEPS = range(1, 9)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["windlass", "owner"])
def test_client_killed_at_a_step(ground, step, how):
    with watch_created_objects(ground) as created, run_client(ground, "--detach") as client:
        seen = [created.get(timeout=60) for _ in range(step)]
        client.kill()
        assert client.wait(10) == -9 or step > 6  # the client may have finished by then
    assert seen[0].startswith("jobs/"), seen
    job = find_job(ground)
    print(f"killed after {seen}: left {ground.left(job)}")
    if how == "owner":
        assert ground.api.delete(JOBS, job)
    else:
        _collect(job)
    ground.wait_for_nothing(job)


def _collect(job: str) -> None:
    """Remove the job as a user does who follows the hints."""
    removed = run_windlass("rm", job)
    if removed.returncode == 2 and "is still " in removed.stderr:
        cancelled = run_windlass("cancel", job)
        assert cancelled.returncode == 0, cancelled.stderr
        removed = run_windlass("rm", job)
    assert removed.returncode == 0, removed.stderr

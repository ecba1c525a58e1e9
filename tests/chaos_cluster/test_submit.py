"""The client killed with -9 at each step of its submit: what is left can be collected, all of it."""

from __future__ import annotations

import pytest
from chaos_cluster.clients import ask, find_job, run_client, watch_births

from windlass.kube.objects.kinds import JOBS

pytestmark = [pytest.mark.cluster, pytest.mark.chaos]
# The Job, its claim, policy, Secret and two Services; then its two pods.
STEPS = range(1, 9)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("how", ["windlass", "owner"])
def test_killed_at_a_step(ground, step, how):
    with watch_births(ground) as born, run_client(ground, "--detach") as client:
        seen = [born.get(timeout=60) for _ in range(step)]
        client.kill()
        assert client.wait(10) == -9 or step > 6  # it may have been done by then
    assert seen[0].startswith("jobs/"), seen
    job = find_job(ground)
    print(f"killed after {seen}: left {ground.left(job)}")
    if how == "owner":
        assert ground.api.delete(JOBS, job)
    else:
        _collect(job)
    ground.wait_for_nothing(job)


def _collect(job: str) -> None:
    """As a user does who reads the hints."""
    removed = ask("rm", job)
    if removed.returncode == 2 and "is still " in removed.stderr:
        cancelled = ask("cancel", job)
        assert cancelled.returncode == 0, cancelled.stderr
        removed = ask("rm", job)
    assert removed.returncode == 0, removed.stderr

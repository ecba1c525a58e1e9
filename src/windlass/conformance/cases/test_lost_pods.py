"""Deleted pods and suspended objects: replacement pods start, and the job continues."""

from __future__ import annotations

from typing import Any

import pytest
from waits import wait_for

from windlass import names
from windlass.kube.objects.kinds import PODS

pytestmark = [
    pytest.mark.cluster_only("a process of this machine has no pod"),
    pytest.mark.needs_can("ends"),
    pytest.mark.engine_matters,
]


def make_work() -> Any:
    """Return a function that is sent by value."""

    def wait_for_go(folder: str) -> str:
        import os
        import time
        from pathlib import Path

        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        Path(folder, f"up-{attempt}-{rank}-{os.environ['WINDLASS_POD_UID']}").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.05)
        return attempt

    return wait_for_go


def find_pods(on, job) -> dict[int | None, str]:
    """Return the names of existing pods by node."""
    pods = on.space.api.list(PODS, labels=f"{names.LABEL_JOB}={job.id}")
    return {on.dialect.index_of(pod): pod["metadata"]["name"] for pod in pods}


def is_complete(on, job) -> bool:
    end = on.dialect.read_end(on.space.api.get(on.kind, job.id))
    return end is not None and end.is_complete


@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.needs_right("delete", "pods")
def test_a_lost_pod_is_replaced_and_the_next_attempt_ends_it(on, shared, lost):
    job = on.submit(make_work(), (shared.path,), nodes=2)
    wait_for(lambda: len(shared.names()) == 2, "both ranks run")
    on.space.api.delete(PODS, find_pods(on, job)[lost])
    wait_for(
        lambda: len([name for name in shared.names() if name.startswith("up-1-")]) == 2,
        "both ranks run again",
    )
    shared.touch("go")
    assert job.results(timeout_s=90) == ["1", "1"]
    (verdict,) = job.status().history
    assert (verdict.kind.value, verdict.node) == ("lost node", lost)
    wait_for(lambda: is_complete(on, job), f"the {on.kind.name} is complete")


def test_a_suspended_job_gives_its_pods_back_and_continues_when_resumed(on, shared):
    job = on.submit(make_work(), (shared.path,))
    wait_for(lambda: len(shared.names()) == 1, "it runs")
    on.space.api.patch(on.kind, job.id, on.dialect.suspend)
    wait_for(lambda: not find_pods(on, job), "its pods are gone")
    assert not job.status().phase.is_final
    on.space.api.patch(on.kind, job.id, on.dialect.start)
    wait_for(lambda: len(shared.names()) == 2, "it runs again")
    shared.touch("go")
    assert len(job.results(timeout_s=90)) == 1
    wait_for(lambda: is_complete(on, job), f"the {on.kind.name} is complete")

"""Interrupted submit: its Job is suspended and holds a Secret with keys, until it is cleaned up.

The next client that submits or lists jobs removes it. A job that a user suspended stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.cluster_ground import wait_until_up, working_in
from cluster_space import Space
from kube.plans import FILES, make_pod_plan
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.cluster import abandoned_jobs
from windlass.engines.dialects.kubernetes import make_job
from windlass.kube.objects.fields import created_s
from windlass.kube.objects.kinds import JOBS, SECRETS
from windlass.kube.objects.manifests import make_owner, make_secret

pytestmark = pytest.mark.cluster


@pytest.fixture
def ground(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    with working_in(space, tmp_path / "project", monkeypatch) as found:
        yield found


def interrupt_submit(ground: Space, job_id: str) -> None:
    """Create what a client creates before it starts its Job, and stop there."""
    plan = make_pod_plan(job_id)
    job = ground.api.create(JOBS, make_job(plan, files=FILES.names, submit="mark"))
    ground.api.create(SECRETS, make_secret(plan, FILES.own, make_owner(JOBS, job)))


@pytest.mark.parametrize("how", ["submit", "ls"])
def test_next_client_removes_the_job_and_its_secret(
    ground: Space, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    stays = wl.submit("work.py::stay")
    wait_until_up(stays)
    marks = ground.api.get(JOBS, stays.id)["metadata"]["annotations"]
    assert names.ANNOTATION_SUBMIT not in marks, "a complete submit removes its mark"
    ground.api.patch(JOBS, stays.id, {"spec": {"suspend": True}})  # as a user would
    interrupt_submit(ground, "broken-ab2cd")
    wl.jobs()
    assert ground.api.get(JOBS, "broken-ab2cd"), "it is recent, so its submit may be in progress"
    made_s = created_s(ground.api.get(JOBS, "broken-ab2cd"))
    monkeypatch.setattr(abandoned_jobs, "HALF_SUBMITTED_S", 5.0)
    wait_for(lambda: time.time() - made_s > 6.0, "it is old")
    if how == "submit":
        monkeypatch.setattr("windlass.engines.cluster.cluster_engine.ClusterEngine.jobs", None)
        wl.submit("work.py::stay")
    else:
        wl.jobs()

    def is_gone() -> bool:
        left = ground.find_objects(f"{names.LABEL_JOB}=broken-ab2cd")
        return not left

    wait_for(is_gone, "the Job is gone, and its Secret with it")
    assert ground.api.get(JOBS, stays.id)["spec"]["suspend"] is True

"""Listing jobs removes computes that never started and are no longer waited for, and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kube.api_server import connect_to, refuse, serve
from kube.fake_cluster import fake_cluster, make_fake_job
from kube.plans import FILES, make_pod_plan

from windlass import names
from windlass.engines.cluster.abandoned_jobs import (
    HALF_SUBMITTED_S,
    is_abandoned,
    is_expired,
    is_half_submitted,
    may_be_live_compute,
    remove_abandoned,
    sweep,
)
from windlass.engines.dialects.kubernetes import KUBERNETES, make_job
from windlass.engines.dialects.trainjob import RUNTIME, SHIPPED, TRAINJOB, render_runtime
from windlass.spec.work import Calls, Command

UNTIL_S = 1000
LATER_S = UNTIL_S + 1.0


def make_compute(name: str = "c-ab2cd", **counts: int) -> dict[str, Any]:
    """Return the Job of a compute that keeps its place until `UNTIL_S`. `counts` are its pods' counts."""
    plan = make_pod_plan(name, work=Calls(place_s=UNTIL_S))
    job = make_job(plan, files=FILES.names)
    job["metadata"] |= {"uid": f"uid-of-{name}", "resourceVersion": "7"}
    return {**job, "status": counts}


def test_job_records_how_long_its_place_is_kept() -> None:
    assert make_compute()["metadata"]["annotations"][names.ANNOTATION_KEEP_PLACE] == "1000"
    for_ever = make_job(make_pod_plan(work=Calls(place_s=None)), files=FILES.names)
    assert names.ANNOTATION_KEEP_PLACE not in for_ever["metadata"]["annotations"]
    assert not is_abandoned(KUBERNETES, for_ever, LATER_S)


def test_compute_that_never_started_is_abandoned_in_time() -> None:
    assert not is_abandoned(KUBERNETES, make_compute(), UNTIL_S - 1.0)
    assert is_abandoned(KUBERNETES, make_compute(), LATER_S)
    assert is_abandoned(KUBERNETES, make_compute(active=2, ready=0), LATER_S), (
        "its pods are pending"
    )


@pytest.mark.parametrize("kind", ["ready", "failed", "succeeded", "terminating"])
def test_compute_whose_pods_ran_is_not_abandoned(kind: str) -> None:
    assert not is_abandoned(KUBERNETES, make_compute(**{kind: 1}), LATER_S)


def test_only_live_computes_are_abandoned() -> None:
    about = make_compute()["metadata"]
    ended = {**make_fake_job("c", {"type": "Failed"}), "metadata": about}
    assert not may_be_live_compute(KUBERNETES, ended)
    assert not is_abandoned(KUBERNETES, ended, LATER_S)
    command = make_job(make_pod_plan(work=Command(argv=("train",))), files=FILES.names)
    assert not may_be_live_compute(KUBERNETES, command)


def test_abandoned_compute_is_removed_only_if_unchanged(tmp_path) -> None:
    gone, used = make_compute("gone-ab2cd"), make_compute("used-ab2cd", ready=1)
    with fake_cluster() as cluster:
        api = connect_to(cluster.url, tmp_path)
        assert remove_abandoned(api, KUBERNETES, [gone, used]) == [used]
        (asked,) = [seen for seen in cluster.seen if seen.method == "DELETE"]
    assert asked.path.endswith("/jobs/gone-ab2cd")
    seen = asked.body["preconditions"]
    assert seen == {"uid": "uid-of-gone-ab2cd", "resourceVersion": "7"}, "not if it has changed"


def test_compute_that_may_not_be_removed_is_listed(tmp_path) -> None:
    with serve(refuse(403, "Forbidden", "you may not")) as server:
        api = connect_to(server.url, tmp_path)
        assert remove_abandoned(api, KUBERNETES, [make_compute()]) == [make_compute()]


def make_half_submitted(**asked: Any) -> dict[str, Any]:
    """Return the Job of a submission that was interrupted before the job started."""
    job = make_job(make_pod_plan(**asked), files=FILES.names, submit="a-mark")
    job["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    job["metadata"]["creationTimestamp"] = "1970-01-01T00:00:00Z"
    return job


def test_interrupted_submit_is_removed(tmp_path: Path) -> None:
    """It never starts by itself, and its Secret would stay forever."""
    job = make_half_submitted()
    assert not is_half_submitted(KUBERNETES, job, HALF_SUBMITTED_S - 1.0), "it may be under way"
    assert is_half_submitted(KUBERNETES, job, HALF_SUBMITTED_S + 1.0)
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [job]}
        assert remove_abandoned(connect_to(cluster.url, tmp_path), KUBERNETES, [job]) == []
        (removed,) = [seen for seen in cluster.seen if seen.method == "DELETE"]
    assert removed.body["preconditions"] == {"uid": "u", "resourceVersion": "7"}


def test_jobs_suspended_by_others_stay() -> None:
    """A complete submit has removed its mark. Jobs in a queue are managed by Kueue."""
    complete = make_half_submitted()
    del complete["metadata"]["annotations"][names.ANNOTATION_SUBMIT]
    running = make_half_submitted()
    running["spec"]["suspend"] = False
    for job in (complete, running, make_half_submitted(queue="training")):
        assert not is_half_submitted(KUBERNETES, job, HALF_SUBMITTED_S + 1.0)


def test_ended_trainjob_is_kept_for_its_ttl(tmp_path) -> None:
    """A TrainJob has no time to live of its own."""
    job = TRAINJOB.render(make_pod_plan(ttl_s=60.0), FILES.names, "")
    job["metadata"] |= {"uid": "u", "resourceVersion": "7"}
    assert not is_expired(TRAINJOB, job, LATER_S), "it runs"
    ended = {"type": "Failed", "status": "True", "lastTransitionTime": "1970-01-01T00:01:40Z"}
    job["status"] = {"conditions": [ended]}
    assert not is_expired(TRAINJOB, job, 159.0)
    assert is_expired(TRAINJOB, job, 161.0)
    with fake_cluster() as cluster:
        cluster.objects = {"trainjobs": [job]}
        assert remove_abandoned(connect_to(cluster.url, tmp_path), TRAINJOB, [job]) == []
    for_ever = TRAINJOB.render(make_pod_plan(ttl_s=None), FILES.names, "")
    assert not is_expired(TRAINJOB, {**for_ever, "status": job["status"]}, LATER_S)


def test_runtime_without_its_trainjob_is_removed(tmp_path) -> None:
    source = SHIPPED[RUNTIME]
    left = render_runtime(make_pod_plan("left-ab2cd"), FILES.names, "a-mark", source)
    exported = render_runtime(make_pod_plan("exported-ab2cd"), FILES.names, "", source)
    for runtime in (left, exported):
        about = {"uid": "u", "resourceVersion": "7", "creationTimestamp": "1970-01-01T00:00:00Z"}
        runtime["metadata"] |= about
    with fake_cluster() as cluster:
        cluster.objects = {"trainingruntimes": [left, exported], "trainjobs": []}
        sweep(connect_to(cluster.url, tmp_path), TRAINJOB)
        removed = [seen.path.rpartition("/")[2] for seen in cluster.seen if seen.method == "DELETE"]
    assert removed == ["left-ab2cd"]

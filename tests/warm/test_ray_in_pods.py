"""Ray in the pods of a compute. Skipped if no cluster node has an image with Ray."""

from __future__ import annotations

import pytest
from ray_tasks import look, run_ray_job
from waits import wait_for

import windlass as kt
from windlass.kube.objects.kinds import NODES

IMAGE = "rayproject/ray:2.32.0-py311"
WORKER = {"gpus": 4, "cpus": "1", "memory": "2.5Gi"}
pytestmark = [pytest.mark.cluster_only, pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def compute(on):
    nodes = on.space.api.list(NODES)
    names = [n for node in nodes for one in node["status"].get("images", ()) for n in one["names"]]
    if not any(name.endswith(IMAGE) for name in names):
        pytest.skip(f"no node has {IMAGE}")
    yield on.make(
        cpus="1", memory="2Gi", image=kt.images.Ray("2.32.0-py311"), launch_timeout="400s"
    )
    on.clean()


@pytest.fixture
def remote(compute):
    return distribute(compute, look)


def distribute(compute, function, workers=1, options=WORKER):
    remote = kt.fn(function).to(compute)
    return remote.distribute(framework="ray", workers=workers, worker_node_options=options)


def test_snippet_of_the_guide(on, compute):
    """The snippet runs a hundred GPU tasks, each in its own Ray process. Only the worker has GPUs."""
    assert distribute(compute, run_ray_job)() == [f"Task {i} on GPU" for i in range(100)]
    gpus = {"nvidia.com/gpu": "4"}
    assert on.read_limits(compute) == {
        0: {"cpu": "1", "memory": "2Gi"},
        1: {"cpu": "1", "memory": "2560Mi", **gpus},
    }


def test_pods_form_a_cluster_that_stays_between_calls(remote):
    first, second = remote(), remote()
    assert first["address"].endswith(":6379")
    assert sorted(first["gpus"].values()) == [0, 4]
    assert (first["address"], first["token"]) == (second["address"], second["token"])


def test_replacement_pod_of_a_lost_worker_joins(on, compute, remote):
    before, uids = remote(), on.pod_uids(compute)
    on.end_node(compute, 1, ("", 0, ""))
    wait_for(lambda: on.pod_uids(compute).get(1, uids[1]) != uids[1], "the pod is replaced")
    after = remote()
    assert after["address"] == before["address"]
    wait_for(lambda: len(remote()["gpus"]) == 2, "it has joined")
    assert on.pod_uids(compute)[0] == uids[0]


def test_workers_of_another_size_are_replaced_and_node_0_stays(on, compute, remote):
    remote()
    uids = on.pod_uids(compute)
    other = distribute(compute, look, options={**WORKER, "gpus": 2})
    assert sorted(other()["gpus"].values()) == [0, 2]
    assert on.read_limits(compute)[1]["nvidia.com/gpu"] == "2"
    assert on.pod_uids(compute)[0] == uids[0]
    assert on.pod_uids(compute)[1] != uids[1]

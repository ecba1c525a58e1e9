"""Ray snippet on KubeRay: a compute that is a RayCluster, with a head and workers of different sizes."""

from __future__ import annotations

import pytest
from cluster_space import Space
from operator_jobs import skip_where_missing
from ray_tasks import run_ray_job

import windlass as kt
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.kube.objects.kinds import NODES, RAY_CLUSTERS

IMAGE = "rayproject/ray:2.32.0-py311"
pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]


def test_snippet_of_the_guide(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    skip_where_missing(RAYCLUSTER, space)
    names = [
        name
        for node in space.api.list(NODES)
        for image in node["status"].get("images", ())
        for name in image["names"]
    ]
    if not any(name.endswith(IMAGE) for name in names):
        pytest.skip(f"no node has {IMAGE}")
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    compute = kt.Compute(
        name="kuberay",
        engine="raycluster",
        cpus="1",
        memory="2Gi",
        image=kt.images.Ray("2.32.0-py311"),
        launch_timeout="400s",
    )
    try:
        remote = kt.fn(run_ray_job).to(compute)
        remote = remote.distribute(
            framework="ray",
            workers=1,
            worker_node_options={"gpus": 4, "cpus": "1", "memory": "2.5Gi"},
        )
        assert remote(num_tasks=8) == [f"Task {i} on GPU" for i in range(8)]
        [cluster] = space.api.list(RAY_CLUSTERS)
        assert [pod_limits(group) for group in groups_of(cluster)] == [
            {"cpu": "1", "memory": "2Gi"},
            {"cpu": "1", "memory": "2.5Gi", "nvidia.com/gpu": "4"},
        ]
    finally:
        compute.teardown()


def groups_of(cluster):
    return [cluster["spec"]["headGroupSpec"], *cluster["spec"]["workerGroupSpecs"]]


def pod_limits(group):
    [container] = group["template"]["spec"]["containers"]
    return container["resources"]["limits"]

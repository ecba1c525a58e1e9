"""RayClusters on a cluster with KubeRay: Ray in their pods, and replaced pods."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import make_shared
from cluster_space import Space
from operator_jobs import use_dialect
from waits import wait_for

import windlass as wl
from windlass.engines.dialects.raycluster import LABEL_CLUSTER, LABEL_TYPE, RAYCLUSTER
from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import NODES, PODS, RAY_CLUSTERS
from windlass.wire.status import Phase

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]
RAY_IMAGE = "localhost/ray:testbed"


@pytest.fixture
def api(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    with use_dialect(RAYCLUSTER, space, monkeypatch, tmp_path):
        yield space.api


@pytest.fixture
def shared(api: Api, space: Space, tmp_path: Any) -> Any:
    return make_shared(space.files, tmp_path)


def make_look() -> Any:
    """Return a local function, which is pickled by value because the pods do not have the tests."""

    def look() -> dict[str, Any]:
        import os

        import ray

        ray.init()
        at_each = [
            {f"node:{node['NodeManagerAddress']}": 0.01} for node in ray.nodes() if node["Alive"]
        ]
        where = ray.remote(lambda: ray.util.get_node_ip_address())
        tasks = [where.options(num_cpus=0, resources=one).remote() for one in at_each]
        kept = ("RAY_PORT", "KUBERAY_GEN_RAY_START_CMD", "BASH_ENV")
        return {
            "nodes": len(set(ray.get(tasks))),
            "seen": [name for name in kept if name in os.environ],
        }

    return look


def make_work() -> Any:
    def wait_for_go(folder: str) -> tuple[str, str]:
        import os
        import time
        from pathlib import Path

        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        pod = os.environ["WINDLASS_POD_NAME"]
        Path(folder, f"up-{attempt}-{rank}").write_text(pod)
        while not Path(folder, "go").exists():
            time.sleep(0.05)
        return attempt, pod

    return wait_for_go


def pods_of(api: Api, job: wl.Job, kind: str = "") -> list[dict[str, Any]]:
    labels = f"{LABEL_CLUSTER}={job.id}" + (f",{LABEL_TYPE}={kind}" if kind else "")
    return list(api.list(PODS, labels=labels))


def test_function_uses_the_ray_cluster_of_all_pods(api):
    images = [one for node in api.list(NODES) for one in node["status"].get("images", ())]
    if not any(RAY_IMAGE in one["names"] for one in images):
        pytest.skip(f"no node has {RAY_IMAGE}")
    job = wl.submit(make_look(), framework="ray", nodes=2, image=RAY_IMAGE, memory="2Gi")
    wait_for(lambda: len(pods_of(api, job)) == 2, "its pods", 60)
    assert job.wait(300).phase is Phase.SUCCEEDED
    assert job.result() == {"nodes": 2, "seen": []}
    wait_for(lambda: api.list(RAY_CLUSTERS) == [], "the client that read its end removes it", 60)


def nodes_of(job: wl.Job) -> dict[int, str]:
    return {node.index: node.pod for node in job.status().nodes}


def test_replacement_pod_keeps_the_node_index(api, shared):
    """Attempts are not counted: on a busy machine ranks may start more often than pods are lost."""
    job = wl.submit(make_work(), (shared.path,), nodes=3)
    wait_for(lambda: {"up-0-0", "up-0-1", "up-0-2"} <= {*shared.names()}, "all ranks run", 120)
    (head,) = pods_of(api, job, "head")
    wait_for(lambda: all(nodes_of(job).values()), "the lead has reported the pods")
    before = nodes_of(job)
    assert before[0] == head["metadata"]["name"]
    for pod in pods_of(api, job, "worker"):
        (waited,) = pod["status"]["initContainerStatuses"]
        assert (waited["name"], waited["restartCount"]) == ("wait-gcs-ready", 0)
    wait_for(lambda: api.get(RAY_CLUSTERS, job.id)["status"].get("state") == "ready", "ready", 60)
    api.delete(PODS, before[2])
    wait_for(lambda: nodes_of(job)[2] not in before.values(), "another pod is node 2", 120)
    after = nodes_of(job)
    assert (after[0], after[1]) == (before[0], before[1])
    api.delete(PODS, before[0])
    wait_for(lambda: nodes_of(job)[0] not in before.values(), "another head is node 0", 120)
    shared.touch("go")
    assert job.wait(150).phase is Phase.SUCCEEDED
    attempts, pods = zip(*job.results(), strict=True)
    assert len(set(attempts)) == 1
    assert pods[1:] == (after[1], after[2]), "workers keep their indexes under another lead"

"""RayClusters and RayJobs of other tools, without a cluster: pods without an index, and any containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube.api_server import write_kubeconfig
from kube.fake_cluster import make_fake_pod
from kube.storing_cluster import StoringCluster, storing_cluster
from waits import wait_for

from windlass.engines.cluster.cluster_engine import ClusterEngine
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.engines.protocol import JobRef
from windlass.errors import JobNotFound
from windlass.settings import read_settings
from windlass.wire.log_lines import LogQuery
from windlass.wire.status import JobStatus, Phase

AT = "2026-01-31T12:00:00Z"
CLUSTER, JOB = (JobRef("raycluster", name, "space") for name in ("mine", "hand"))


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoringCluster]:
    with storing_cluster() as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=server.url)))
        server.objects = {
            kind: [] for kind in ("secrets", "pods", "events", "rayclusters", "rayjobs")
        }
        yield server


@pytest.fixture
def engine(cluster: StoringCluster, tmp_path: Path) -> Iterator[ClusterEngine]:
    environ = {"WINDLASS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    made = ClusterEngine(
        RAYCLUSTER, read_settings(flags={"namespace": "space"}, environ=environ, start=tmp_path)
    )
    yield made
    for adopted in made._adopted.values():
        adopted._watch.close()


def put_cluster(cluster: StoringCluster, name: str, replicas: int = 2) -> None:
    body = {
        "kind": "RayCluster",
        "metadata": {"name": name, "uid": f"uid-{name}", "creationTimestamp": AT},
        "spec": {"workerGroupSpecs": [{"groupName": "small", "replicas": replicas}]},
        "status": {"state": "ready"},
    }
    cluster.put("rayclusters", body)


def put_job(cluster: StoringCluster, **status: Any) -> None:
    body = {
        "kind": "RayJob",
        "metadata": {"name": "hand", "uid": "uid-hand", "creationTimestamp": AT},
        "spec": {"rayClusterSpec": {"workerGroupSpecs": [{"replicas": 1}]}},
        "status": {"rayClusterName": "hand-x2x3x", **status},
    }
    cluster.put("rayjobs", body)


def make_pod(name: str, owner: str, kind: str = "", at: int = 0) -> dict[str, Any]:
    pod = make_fake_pod(name)
    container = f"ray-{kind}"
    labels = {"ray.io/cluster": owner, "ray.io/node-type": kind} if kind else {"job-name": owner}
    pod["metadata"] |= {"labels": labels, "creationTimestamp": f"2026-01-31T12:00:{at:02}Z"}
    pod["metadata"]["ownerReferences"][0] |= {"uid": f"uid-{owner}", "name": owner}
    pod["spec"]["containers"] = [{"name": container}, {"name": "autoscaler"}]
    running = {"name": container, "state": {"running": {"startedAt": AT}}}
    pod["status"] = {"phase": "Running", "containerStatuses": [running]}
    return pod


def wait_for_status(engine: ClusterEngine, ref: JobRef, is_so: Any, what: str) -> JobStatus:
    wait_for(lambda: is_so(engine.status(ref)), what)
    return engine.status(ref)


def nodes_of(status: JobStatus) -> dict[int, str]:
    return {node.index: node.name for node in status.nodes}


def test_head_is_node_0_and_workers_are_numbered_by_age(engine, cluster):
    put_cluster(cluster, "mine")
    first, second = (make_pod(name, "mine", "worker", at) for name, at in (("w-b", 1), ("w-a", 2)))
    cluster.put("pods", second, first, make_pod("head", "mine", "head", at=3))
    status = wait_for_status(engine, CLUSTER, lambda s: len(s.nodes) == 3, "its pods are seen")
    assert nodes_of(status) == {0: "head", 1: "w-b", 2: "w-a"}
    assert (status.phase, status.num_nodes) == (Phase.RUNNING, 3)
    assert "3 of 3 pods run; it was not created by Windlass" in status.conditions[0].message


def test_replacement_pod_gets_the_free_number(engine, cluster):
    put_cluster(cluster, "mine")
    first, second, third = (
        make_pod(name, "mine", "worker", at) for at, name in enumerate(("w-a", "w-b", "w-c"))
    )
    cluster.put("pods", first, second)
    wait_for_status(engine, CLUSTER, lambda s: len(s.nodes) == 2, "its pods are seen")
    cluster.put("pods", second, third)
    is_there = {1: "w-c", 2: "w-b"}
    wait_for_status(engine, CLUSTER, lambda s: nodes_of(s) == is_there, "it has taken its place")


def test_logs_are_read_from_the_first_container(engine, cluster):
    put_cluster(cluster, "mine")
    cluster.put("pods", make_pod("head", "mine", "head"))
    cluster.logs["head"] = f"{AT} started\n".encode()
    assert [line.text for line in engine.logs(CLUSTER, LogQuery()).read_all()] == ["started"]
    (asked,) = [seen for seen in cluster.seen if seen.path.endswith("/head/log")]
    assert asked.params["container"] == "ray-head"


def test_ray_job_has_the_pods_of_its_cluster_and_the_submitter(engine, cluster):
    put_job(cluster, jobStatus="RUNNING", jobDeploymentStatus="Running")
    own = [make_pod(kind, "hand-x2x3x", kind, at) for at, kind in enumerate(("head", "worker"))]
    cluster.put(
        "pods", *own, make_pod("submitter", "hand", at=3), make_pod("another", "other", "worker")
    )
    status = wait_for_status(engine, JOB, lambda s: len(s.nodes) == 3, "its pods are seen")
    assert nodes_of(status) == {0: "head", 1: "worker", 2: "submitter"}
    assert status.work == "RayJob hand"


@pytest.mark.parametrize(
    ("fields", "phase"),
    [
        ({"jobDeploymentStatus": "Complete", "jobStatus": "SUCCEEDED"}, Phase.SUCCEEDED),
        ({"jobDeploymentStatus": "Failed", "jobStatus": "FAILED"}, Phase.FAILED),
        ({"jobDeploymentStatus": "Complete", "jobStatus": "FAILED"}, Phase.FAILED),
        ({"jobDeploymentStatus": "Initializing"}, Phase.PENDING),
    ],
)
def test_the_end_of_a_ray_job(engine, cluster, fields, phase):
    put_job(cluster, **fields, reason="AppFailed", message="exit code 1\nlines", endTime=AT)
    status = engine.status(JOB)
    assert status.phase is phase
    if phase is Phase.FAILED:
        assert status.verdict.message == "AppFailed: exit code 1"


def test_unknown_name(engine):
    with pytest.raises(JobNotFound, match="job 'hand' not found"):
        engine.status(JOB)


def test_remove_deletes_the_ray_job(engine, cluster):
    put_job(cluster, jobStatus="SUCCEEDED", jobDeploymentStatus="Complete")
    wait_for_status(engine, JOB, lambda s: s.phase.is_final, "it has ended")
    engine.remove(JOB)
    (deleted,) = [seen for seen in cluster.seen if seen.method == "DELETE"]
    assert deleted.path.endswith("/rayjobs/hand")

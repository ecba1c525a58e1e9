"""Pods on a lost machine are ended by the client that reads the status, if their kind replaces none."""

from __future__ import annotations

import time

import pytest
from cluster_engines import make_pod, submit
from kube.api_server import Answer, refuse
from kube.storing_cluster import StoringCluster
from waits import wait_for

from windlass.engines.cluster.cluster_engine import ClusterEngine
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.trainjob import TRAINJOB
from windlass.engines.protocol import JobRef
from windlass.observe.explain import explain

ENDING = {
    "trainjob": ["PATCH status", "DELETE"],
    "pytorchjob": ["DELETE"],
    "monarchmesh": ["DELETE"],
}
without_replacement = pytest.mark.parametrize(
    "dialect", [TRAINJOB, PYTORCHJOB, MONARCHMESH], indirect=True
)


def put_lost_pod(cluster: StoringCluster, dialect: Dialect, *, deleted_s: float) -> str:
    """Put a deleted pod of the job on a machine that does not answer, and return the pod's name."""
    pod = make_pod(cluster, dialect)
    at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(deleted_s))
    pod["metadata"]["deletionTimestamp"] = at
    why = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    pod["status"] = {"phase": "Running", "conditions": [why]}
    cluster.put("pods", pod)
    return str(pod["metadata"]["name"])


def put_node(cluster: StoringCluster, *, is_ready: bool) -> None:
    ready = {"type": "Ready", "status": "True" if is_ready else "Unknown"}
    about = {"name": "n1", "uid": "n1"}
    cluster.put("nodes", {"metadata": about, "status": {"conditions": [ready]}})


def read_endings(cluster: StoringCluster) -> list[str]:
    """Return the requests that changed or deleted pods."""
    with cluster.lock:
        of_pods = [seen for seen in cluster.seen if "/pods/" in seen.path]
    return [
        f"{seen.method} status" if seen.path.endswith("/status") else seen.method
        for seen in of_pods
        if seen.method in ("PATCH", "DELETE")
    ]


def poll_until_ended(engine: ClusterEngine, ref: JobRef, cluster, dialect) -> None:
    """Read the status until the pod is ended. Pods are checked every two seconds."""

    def is_ended() -> bool:
        read_status(engine, ref)
        return read_endings(cluster) == ENDING[dialect.name]

    wait_for(is_ended, "the pod is ended", 20)


def read_status(engine: ClusterEngine, ref: JobRef) -> None:
    """Wait until the pod is known, then read the status."""
    wait_for(lambda: bool(engine._views[ref.job_id]._watch.pods), "it sees the pod", 20)
    engine.status(ref)


@without_replacement
def test_lost_pod_is_ended(engine, cluster, dialect):
    ref = submit(engine, dialect)
    put_node(cluster, is_ready=False)
    name = put_lost_pod(cluster, dialect, deleted_s=time.time() + 30)
    poll_until_ended(engine, ref, cluster, dialect)
    deleted = next(s for s in cluster.seen if s.method == "DELETE" and "/pods/" in s.path)
    assert deleted.body["gracePeriodSeconds"] == 0
    assert deleted.body["preconditions"] == {"uid": name}


@pytest.mark.parametrize("dialect", [KUBERNETES], indirect=True)
def test_pod_that_kubernetes_replaces_is_left_alone(engine, cluster, dialect):
    ref = submit(engine, dialect)
    put_node(cluster, is_ready=False)
    put_lost_pod(cluster, dialect, deleted_s=time.time() - 60)
    read_status(engine, ref)
    assert read_endings(cluster) == []


@without_replacement
def test_pod_on_an_answering_machine_keeps_its_grace(engine, cluster, dialect):
    """An admin may have tainted the machine while the ranks are saving."""
    ref = submit(engine, dialect)
    put_node(cluster, is_ready=True)
    put_lost_pod(cluster, dialect, deleted_s=time.time() - 60)
    read_status(engine, ref)
    assert read_endings(cluster) == []


@pytest.mark.parametrize(("since_s", "is_over"), [(600.0, False), (-60.0, True)])
@without_replacement
def test_grace_must_be_over_if_nodes_cannot_be_read(engine, cluster, dialect, since_s, is_over):
    ref = submit(engine, dialect)
    no = Answer(body={"status": {"allowed": False}})
    cluster.refusals["POST", "/selfsubjectaccessreviews"] = no
    put_lost_pod(cluster, dialect, deleted_s=time.time() + since_s)
    if is_over:
        poll_until_ended(engine, ref, cluster, dialect)
    else:
        read_status(engine, ref)
        assert read_endings(cluster) == []


@without_replacement
def test_missing_right_is_reported_with_a_hint(engine, cluster, dialect):
    ref = submit(engine, dialect)
    put_node(cluster, is_ready=False)
    no = refuse(403, "Forbidden", 'User "u" cannot delete resource "pods" in API group ""')
    for method in ("PATCH", "DELETE"):
        cluster.refusals[method, "/status" if method == "PATCH" else f"/pods/{ref.job_id}-0"] = no
    name = put_lost_pod(cluster, dialect, deleted_s=time.time() - 60)
    read_status(engine, ref)

    def is_reported() -> bool:
        return explain(engine.status(ref), now_s=time.time()).reason == "NodeLost"

    wait_for(is_reported, "its status names the pod", 20)
    why = explain(engine.status(ref), now_s=time.time())
    assert f"pod {name} on node n1 was removed" in why.sentence
    assert f"windlass doctor -e {dialect.name}" in why.next
    assert len(read_endings(cluster)) == 1, "what is forbidden is not tried again"

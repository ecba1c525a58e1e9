"""Objects of other tools, without a cluster: status, logs and reason are derived from their pods."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kube.api_server import write_kubeconfig
from kube.fake_cluster import make_fake_pod
from kube.storing_cluster import StoringCluster, storing_cluster
from waits import wait_for

from windlass.client.jobs.find_jobs import find_job
from windlass.engines.cluster.cluster_engine import ClusterEngine
from windlass.engines.cluster.job_secret import NotOurs
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.protocol import JobRef
from windlass.observe.explain import explain
from windlass.settings import Settings, read_settings
from windlass.wire.log_lines import LogQuery
from windlass.wire.status import FailureKind, JobStatus, Phase

REF = JobRef("pytorchjob", "torchrun-cpu", "space")
AT = "2026-01-31T12:00:00Z"
MASTER, WORKER = "torchrun-cpu-master-0", "torchrun-cpu-worker-0"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoringCluster]:
    with storing_cluster() as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=server.url)))
        server.objects = {"secrets": [], "pods": [], "events": [], "jobs": []}
        yield server


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {"WINDLASS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    flags = {"engine": "pytorchjob", "namespace": "space"}
    return read_settings(flags=flags, environ=environ, start=tmp_path)


@pytest.fixture
def engine(cluster: StoringCluster, settings: Settings) -> Iterator[ClusterEngine]:
    made = ClusterEngine(PYTORCHJOB, settings)
    yield made
    for adopted in made._adopted.values():
        adopted._watch.close()


def put_job(cluster: StoringCluster, *conditions: str, suspend: bool = False) -> None:
    rendered = [
        {"type": kind, "status": "True", "reason": f"PyTorchJob{kind}", "lastTransitionTime": AT}
        for kind in conditions
    ]
    body = {
        "kind": "PyTorchJob",
        "metadata": {"name": REF.job_id, "uid": "u1", "creationTimestamp": AT},
        "spec": {
            "runPolicy": {"suspend": suspend},
            "pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 1}},
        },
        "status": {"conditions": rendered},
    }
    cluster.put("pytorchjobs", body)


def make_pod(name: str, phase: str, **state: dict[str, Any]) -> dict[str, Any]:
    kind, index = name.split("-")[-2:]
    pod = make_fake_pod(name)
    pod["metadata"]["labels"] = {
        "training.kubeflow.org/job-name": REF.job_id,
        "training.kubeflow.org/replica-type": kind,
        "training.kubeflow.org/replica-index": index,
    }
    pod["metadata"]["ownerReferences"][0]["uid"] = "u1"
    pod["spec"]["containers"] = [{"name": "pytorch"}]
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": "pytorch", "state": state}]}
    return pod


def wait_for_status(engine: ClusterEngine, is_so: Any, what: str) -> JobStatus:
    wait_for(lambda: is_so(engine.status(REF)), what)
    return engine.status(REF)


def test_nodes_are_the_pods_with_the_master_first(engine, cluster):
    put_job(cluster, "Created", "Running")
    running = {"running": {"startedAt": AT}}
    cluster.put(
        "pods", make_pod(WORKER, "Running", **running), make_pod(MASTER, "Running", **running)
    )
    status = wait_for_status(engine, lambda s: s.phase is Phase.RUNNING, "it runs")
    assert [node.name for node in status.nodes] == [MASTER, WORKER]
    assert [node.state for node in status.nodes] == ["joined", "joined"]
    why = explain(status, now_s=0.0)
    assert why.reason == "Adopted"
    assert "2 of 2 pods run; it was not created by Windlass" in why.sentence


@pytest.mark.parametrize(("condition", "phase"), [("Succeeded", "succeeded"), ("Failed", "failed")])
def test_end_is_read_from_the_object(engine, cluster, condition, phase):
    put_job(cluster, condition)
    status = wait_for_status(engine, lambda s: s.phase.is_final, "it has ended")
    assert status.phase.value == phase
    assert status.ended_at_s == status.created_at_s


def test_failed_pod_is_named_with_its_exit_code(engine, cluster):
    put_job(cluster, "Failed")
    ended = {"terminated": {"exitCode": 100, "finishedAt": AT}}
    cluster.put("pods", make_pod(WORKER, "Failed", **ended))
    status = wait_for_status(engine, lambda s: bool(s.nodes), "its pod was seen")
    assert status.verdict.kind is FailureKind.USER_ERROR
    assert (status.verdict.node, status.verdict.exit_code) == (1, 100)
    assert status.verdict.message == f"pod {WORKER} on node n1 exited with code 100"
    assert status.verdict.next == "windlass logs torchrun-cpu -e pytorchjob"


def test_suspended_job_is_not_called_half_submitted(engine, cluster):
    put_job(cluster, "Suspended", suspend=True)
    status = wait_for_status(engine, lambda s: len(s.conditions) > 1, "what holds it back is known")
    blocker = status.conditions[-1]
    assert (status.phase, blocker.reason) == (Phase.PENDING, "Suspended")
    assert "kubectl edit pytorchjob torchrun-cpu" in blocker.hint


def test_logs_of_pods_are_merged_by_time_without_duplicates(engine, cluster):
    put_job(cluster, "Running")
    cluster.put("pods", make_pod(MASTER, "Running"), make_pod(WORKER, "Running"))
    cluster.logs[MASTER] = b"2026-01-31T12:00:01.5Z one\n2026-01-31T12:00:03.123456789Z three\n"
    cluster.logs[WORKER] = b"2026-01-31T12:00:02Z bar 1%\rbar 9%\n"
    wait_for_status(engine, lambda s: len(s.nodes) == 2, "both were seen")
    reader = engine.logs(REF, LogQuery())
    lines = [(line.node, line.text) for line in reader.read_all()]
    assert lines == [(0, "one"), (1, "bar 9%"), (0, "three")]
    cluster.logs[WORKER] += b"2026-01-31T12:00:04Z four\n"
    assert [line.text for line in reader.read_rest()] == ["four"]
    assert reader.read_rest() == []
    (only,) = engine.logs(REF, LogQuery(node=1, grep="four")).read_all()
    assert only.text == "four"


def test_adopted_job_has_no_results(engine, cluster):
    put_job(cluster, "Succeeded")
    with pytest.raises(NotOurs, match="was not created by Windlass: it has no plan and no re"):
        engine.results(REF)


def test_cancel_deletes_the_object(engine, cluster):
    put_job(cluster, "Running")
    assert not engine.status(REF).phase.is_final
    engine.cancel(REF, why="enough")
    status = wait_for_status(engine, lambda s: s.phase.is_final, "it has ended")
    assert (status.phase, status.verdict.message) == (Phase.CANCELLED, "enough")
    assert cluster.names() == []


@pytest.mark.parametrize("condition", ["Succeeded", "Failed"])
def test_cancel_keeps_an_ended_job_and_its_logs(engine, cluster, condition):
    put_job(cluster, condition)
    engine.cancel(REF, why="enough")
    assert cluster.names() == [f"pytorchjobs/{REF.job_id}"]
    assert engine.status(REF).phase is Phase(condition.lower())


@pytest.mark.parametrize(("condition", "options"), [("Running", " -f"), ("Succeeded", "")])
def test_next_step_names_the_engine(engine, cluster, condition, options):
    put_job(cluster, condition)
    running = {"running": {"startedAt": AT}}
    pods = [make_pod(name, "Running", **running) for name in (MASTER, WORKER)]
    cluster.put("pods", *pods)
    status = wait_for_status(engine, lambda s: len(s.nodes) == 2, "both were seen")
    assert explain(status, now_s=0.0).next == f"windlass logs torchrun-cpu -e pytorchjob{options}"


def test_adopted_job_is_found_by_name_but_not_listed(cluster, settings):
    put_job(cluster, "Succeeded")
    job = find_job("torchrun-cpu", settings)
    assert job.status().phase is Phase.SUCCEEDED


def test_foreign_object_of_another_kind_is_refused(cluster, settings):
    cluster.put("jobs", {"metadata": {"name": REF.job_id, "uid": "u2", "creationTimestamp": AT}})
    with pytest.raises(NotOurs):
        ClusterEngine(KUBERNETES, settings).status(REF)


def test_misspelled_field_of_the_guides_is_reported(engine, cluster):
    """The API server drops the field, but kubectl has recorded what was applied."""
    put_job(cluster)
    (body,) = cluster.objects["pytorchjobs"]
    applied = json.dumps({"spec": {"nProcPerNode": "2"}})
    body["metadata"]["annotations"] = {"kubectl.kubernetes.io/last-applied-configuration": applied}
    cluster.put("pytorchjobs", body)
    message = engine.status(REF).conditions[0].message
    assert "nProcPerNode: 2 in its file has no effect, and nprocPerNode is auto" in message
    assert 'write nprocPerNode: "2"' in message

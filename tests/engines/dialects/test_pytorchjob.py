"""Rendering and reading of PyTorchJobs."""

from __future__ import annotations

from typing import Any

import pytest
from kube.plans import FILES, make_pod_plan
from kube.storing_cluster import merge

from windlass import names
from windlass.engines.cluster.submit import render_documents
from windlass.engines.dialects.dialect import ObjectEnd, ObjectPhase
from windlass.engines.dialects.pytorchjob import (
    LABEL_INDEX,
    PYTORCHJOB,
    index_in_name,
    index_of,
    num_pods,
    read_end,
    read_phase,
)
from windlass.kube.diagnosis.blocker import HALF_SUBMITTED, NOT_ADMITTED, OPERATOR_IDLE

AT = "1970-01-01T00:01:40Z"


def render(**asked: Any) -> dict[str, Any]:
    return PYTORCHJOB.render(make_pod_plan(**asked), FILES.names, "a mark")


def container_of(job: dict[str, Any]) -> dict[str, Any]:
    (container,) = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"]
    return container


def make_job(*conditions: dict[str, Any], suspend: bool = False, **counts: int) -> dict[str, Any]:
    rendered = [
        {"status": "True", "lastTransitionTime": AT, **condition} for condition in conditions
    ]
    status = {"conditions": rendered, "replicaStatuses": {"Worker": counts}}
    return {"spec": {"runPolicy": {"suspend": suspend}}, "status": status}


@pytest.mark.parametrize(
    ("job", "end"),
    [
        (make_job({"type": "Created"}, {"type": "Running"}), None),
        (make_job({"type": "Succeeded", "status": "False"}), None),
        (make_job({"type": "Succeeded"}), ObjectEnd(is_complete=True, at_s=100.0)),
        (
            make_job({"type": "Failed", "reason": "PyTorchJobFailed", "message": "a worker"}),
            ObjectEnd(is_complete=False, at_s=100.0, message="PyTorchJobFailed: a worker"),
        ),
        ({}, None),
    ],
)
def test_its_end(job, end):
    assert read_end(job) == end


@pytest.mark.parametrize(
    ("job", "phase"),
    [
        (make_job(suspend=True), ObjectPhase.HELD),
        (make_job(), ObjectPhase.WAITING),
        ({"spec": {}}, ObjectPhase.WAITING),
        (make_job(active=1), ObjectPhase.STARTED),
        (make_job({"type": "Restarting"}), ObjectPhase.STARTED),
        (make_job({"type": "Failed"}, failed=1), ObjectPhase.ENDED),
    ],
)
def test_its_phase(job, phase):
    assert read_phase(job) is phase


@pytest.mark.parametrize(
    ("pod", "index"),
    [
        ("train-ab2cd-worker-0", 0),
        ("train-ab2cd-worker-12", 12),
        ("train-ab2cd-0", None),
        ("other-ab2cd-worker-0", None),
        ("", None),
    ],
)
def test_index_from_the_name_of_a_deleted_pod(pod, index):
    assert index_in_name(pod, "train-ab2cd") == index


def test_job_has_only_workers():
    job = render(nodes=3)
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert num_pods(job) == 3
    (place,) = (env for env in container_of(job)["env"] if env["name"] == names.NODE_INDEX)
    label = "training.kubeflow.org/replica-index"
    assert place["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{label}']"
    assert index_of({"metadata": {"labels": {label: "2"}}}) == 2


def test_processes_per_node_are_a_string():
    job = render(nodes=2, procs=4)
    assert job["spec"]["nprocPerNode"] == "4"
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def test_exit_codes_decide_between_failure_and_replacement():
    """An agent of a failed job exits with a code below 128, which is final for the operator."""
    job = render()
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
    assert {"name": names.ENV_TELLS_FAILURE, "value": "1"} in container_of(job)["env"]
    assert 0 < names.EXIT_FAILED_WORK < 128 <= names.EXIT_STOPPED
    assert "elasticPolicy" not in job["spec"]


def test_min_and_max_nodes_are_an_elastic_policy():
    spec = render(nodes=4, min_nodes=2)["spec"]
    policy = {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}
    assert (spec["elasticPolicy"], num_pods({"spec": spec})) == (policy, 4)


def test_run_policy():
    assert render()["spec"]["runPolicy"] == {
        "suspend": True,
        "cleanPodPolicy": "None",
        "backoffLimit": 3,
        "ttlSecondsAfterFinished": 86400,
    }
    policy = render(ttl_s=None, node_restarts=7, timeout_s=60.0)["spec"]["runPolicy"]
    assert policy["backoffLimit"] == 7
    assert policy["activeDeadlineSeconds"] > 86400, "a backstop only: the lead keeps the time"
    assert "ttlSecondsAfterFinished" not in policy


def test_rendered_suspended_and_changed_by_patches():
    job = render(nodes=2)
    assert read_phase(job) is ObjectPhase.HELD
    started = merge(job, PYTORCHJOB.start)
    assert read_phase(started) is ObjectPhase.WAITING
    assert merge(started, PYTORCHJOB.suspend) == job
    policy = merge(started, PYTORCHJOB.give_up)["spec"]["runPolicy"]
    assert policy == {**started["spec"]["runPolicy"], "backoffLimit": 0}


def test_an_export_is_started_and_keeps_its_run_policy():
    *_, exported = render_documents(PYTORCHJOB, make_pod_plan(), FILES)
    policy = render()["spec"]["runPolicy"]
    assert exported["spec"]["runPolicy"] == {**policy, "suspend": False}


def test_container_is_renamed_for_the_operator():
    """In a patch, users call the container `windlass` on every engine."""
    extra = {"name": "windlass", "env": [{"name": "A", "value": "b"}]}
    job = render(patch={"spec": {"containers": [extra, {"name": "other", "image": "x"}]}})
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    ours, other = template["spec"]["containers"]
    assert (ours["name"], other["name"]) == (PYTORCHJOB.container, "other")
    assert ours["env"][-1] == {"name": "A", "value": "b"}
    marks = template["metadata"]["annotations"]
    assert marks["kubectl.kubernetes.io/default-container"] == "pytorch"


@pytest.mark.parametrize(("queue", "reason"), [("", HALF_SUBMITTED), ("blue", NOT_ADMITTED)])
def test_blocker_of_a_suspended_job(queue, reason):
    job = render(queue=queue)
    job["metadata"]["creationTimestamp"] = AT
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [])
    assert (blocker.reason, blocker.since_s) == (reason, 100.0)
    assert PYTORCHJOB.read_hold(merge(job, PYTORCHJOB.start), events=(), queues=None) is None


def test_reason_of_kueue_is_shown():
    job = render(queue="blue")
    event = {
        "involvedObject": {"kind": "Workload", "name": "pytorchjob-train-ab2cd-1b2c3"},
        "reason": "Pending",
        "message": "couldn't assign flavors: insufficient unused quota for cpu in flavor a",
        "lastTimestamp": AT,
    }
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [event], queues=["blue"])
    assert "insufficient unused quota for cpu" in blocker.message


def test_reason_for_a_refused_pod_is_shown():
    job = merge(render(nodes=2), PYTORCHJOB.start)
    job["metadata"]["creationTimestamp"] = AT
    event = {
        "involvedObject": {"kind": "PyTorchJob", "name": "train-ab2cd"},
        "reason": "FailedCreatePod",
        "message": 'Error creating: pods "train-ab2cd-worker-1" is forbidden: exceeded quota: one, '
        "requested: pods=1, used: pods=1, limited: pods=1",
        "lastTimestamp": AT,
    }
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [event])
    assert blocker.message.startswith('2 of 2 pods cannot be created: the namespace\'s quota "one"')


def test_idle_operator_is_named():
    job = merge(render(), PYTORCHJOB.start)
    job["metadata"]["creationTimestamp"] = AT
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [])
    assert "training-operator" in f"{blocker.message} {blocker.hint}"


def test_pod_that_is_not_replaced_is_reported():
    job = merge(render(nodes=2), PYTORCHJOB.start)
    job["metadata"]["creationTimestamp"] = AT
    pod = {
        "metadata": {"name": "train-ab2cd-worker-0", "labels": {LABEL_INDEX: "0"}},
        "status": {"phase": "Running"},
    }
    killed = {
        "involvedObject": {"kind": "Pod", "name": "train-ab2cd-worker-1"},
        "reason": "Killing",
        "lastTimestamp": "1970-01-01T00:05:00Z",
    }
    (blocker,) = PYTORCHJOB.find_blockers(job, [pod], [killed])
    assert (blocker.reason, blocker.since_s) == (OPERATOR_IDLE, 300.0)
    assert "training-operator has not made 1 of 2 pods of PyTorchJob" in blocker.message

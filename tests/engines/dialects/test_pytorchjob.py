"""What a PyTorchJob says of itself, and what is said to it."""

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
    said = [{"status": "True", "lastTransitionTime": AT, **condition} for condition in conditions]
    status = {"conditions": said, "replicaStatuses": {"Worker": counts}}
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
def test_the_index_in_the_name_of_a_pod_that_is_gone(pod, index):
    assert index_in_name(pod, "train-ab2cd") == index


def test_there_are_workers_only_so_that_nobody_waits_for_a_name():
    job = render(nodes=3)
    assert list(job["spec"]["pytorchReplicaSpecs"]) == ["Worker"]
    assert num_pods(job) == 3
    (place,) = (env for env in container_of(job)["env"] if env["name"] == names.NODE_INDEX)
    label = "training.kubeflow.org/replica-index"
    assert place["valueFrom"]["fieldRef"]["fieldPath"] == f"metadata.labels['{label}']"
    assert index_of({"metadata": {"labels": {label: "2"}}}) == 2


def test_both_levels_of_parallelism_are_said_and_the_inner_one_is_a_text():
    job = render(nodes=2, procs=4)
    assert job["spec"]["nprocPerNode"] == "4"
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["replicas"] == 2


def test_a_users_error_is_final_and_a_lost_pod_is_replaced():
    """By their exit codes: agents of a job that failed leave with one below 128."""
    job = render()
    assert job["spec"]["pytorchReplicaSpecs"]["Worker"]["restartPolicy"] == "ExitCode"
    assert {"name": names.ENV_TELLS_FAILURE, "value": "1"} in container_of(job)["env"]
    assert 0 < names.EXIT_FAILED_WORK < 128 <= names.EXIT_TOLD_TO_STOP
    assert "elasticPolicy" not in job["spec"]


def test_min_and_max_nodes_are_an_elastic_policy():
    spec = render(nodes=4, min_nodes=2)["spec"]
    policy = {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}
    assert (spec["elasticPolicy"], num_pods({"spec": spec})) == (policy, 4)


def test_the_run_policy_is_what_was_asked_for():
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


def test_it_is_rendered_held_back_started_suspended_and_given_up_by_patches():
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


def test_our_container_has_the_name_that_the_operator_wants_also_where_it_is_patched():
    """Users write `windlass` in a patch, on every engine."""
    extra = {"name": "windlass", "env": [{"name": "A", "value": "b"}]}
    job = render(patch={"spec": {"containers": [extra, {"name": "other", "image": "x"}]}})
    template = job["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]
    ours, other = template["spec"]["containers"]
    assert (ours["name"], other["name"]) == (PYTORCHJOB.container, "other")
    assert ours["env"][-1] == {"name": "A", "value": "b"}
    marks = template["metadata"]["annotations"]
    assert marks["kubectl.kubernetes.io/default-container"] == "pytorch"


@pytest.mark.parametrize(("queue", "reason"), [("", HALF_SUBMITTED), ("blue", NOT_ADMITTED)])
def test_what_holds_it_back(queue, reason):
    job = render(queue=queue)
    job["metadata"]["creationTimestamp"] = AT
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [])
    assert (blocker.reason, blocker.since_s) == (reason, 100.0)
    assert PYTORCHJOB.read_hold(merge(job, PYTORCHJOB.start), events=(), queues=None) is None


def test_what_kueue_says_of_it_is_passed_on():
    job = render(queue="blue")
    event = {
        "involvedObject": {"kind": "Workload", "name": "pytorchjob-train-ab2cd-1b2c3"},
        "reason": "Pending",
        "message": "couldn't assign flavors: insufficient unused quota for cpu in flavor a",
        "lastTimestamp": AT,
    }
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [event], queues=["blue"])
    assert "insufficient unused quota for cpu" in blocker.message


def test_a_pod_that_the_api_server_refuses_is_told_in_its_words():
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


def test_an_operator_that_does_nothing_is_named():
    job = merge(render(), PYTORCHJOB.start)
    job["metadata"]["creationTimestamp"] = AT
    (blocker,) = PYTORCHJOB.find_blockers(job, [], [])
    assert "training-operator" in f"{blocker.message} {blocker.hint}"


def test_a_lost_pod_that_its_operator_does_not_replace_is_told_since_it_was_lost():
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

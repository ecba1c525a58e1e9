"""Rendering and reading of MonarchMeshes."""

from __future__ import annotations

import re
from typing import Any

import pytest
from kube.plans import FILES, make_pod_plan
from kube.storing_cluster import merge

from windlass import names
from windlass.engines.cluster.submit import render_documents
from windlass.engines.dialects.dialect import ObjectPhase
from windlass.engines.dialects.monarchmesh import (
    LABEL_INDEX,
    MONARCHMESH,
    index_in_name,
    make_name,
    owns,
)
from windlass.errors import SpecError
from windlass.kube.diagnosis.blocker import OPERATOR_IDLE

AT = "1970-01-01T00:01:40Z"


def render(**asked: Any) -> dict[str, Any]:
    return MONARCHMESH.render(make_pod_plan(**asked), FILES.names, "a mark")


def read_env(mesh: dict[str, Any]) -> dict[str, Any]:
    (container,) = mesh["spec"]["podTemplate"]["spec"]["containers"]
    return {one["name"]: one.get("value") or one["valueFrom"] for one in container["env"]}


@pytest.mark.parametrize(
    ("job_id", "name"),
    [
        ("train-ab2cd", "trainab2cd"),
        ("a-b-c-2-ab2cd", "abc2ab2cd"),
        ("ddpmesh", "ddpmesh"),
        (f"{'a-' * 19}b-ab2cd", f"{'a' * 19}bab2cd"),
    ],
)
def test_name_is_the_job_id_without_dashes(job_id, name):
    assert make_name(job_id) == name
    assert re.fullmatch("[a-z][a-z0-9]*", name), "what the kind's own rule asks for"
    assert make_name(name) == name, "others' are called what they are called"


def test_only_the_mesh_has_the_changed_name():
    *others, mesh = render_documents(MONARCHMESH, make_pod_plan(nodes=3), FILES)
    assert (mesh["metadata"]["name"], mesh["spec"]["replicas"]) == ("trainab2cd", 3)
    assert mesh["metadata"]["labels"][names.LABEL_JOB] == "train-ab2cd"
    assert all(other["metadata"]["name"].startswith("train-ab2cd") for other in others)


def test_pods_restart_so_agents_stay_up():
    mesh = render()
    assert mesh["spec"]["podTemplate"]["spec"]["restartPolicy"] == "Always"
    assert read_env(mesh)[names.ENV_STAYS_UP] == "1"
    assert MONARCHMESH.stays_up
    assert MONARCHMESH.read_end(mesh) is None


def test_pods_know_their_index_and_the_host_names():
    env = read_env(render(nodes=2))
    field = {"fieldRef": {"fieldPath": "metadata.labels['apps.kubernetes.io/pod-index']"}}
    assert env[names.NODE_INDEX] == field
    assert env[names.POD_HOSTS] == "trainab2cd-{index}.trainab2cd-svc"


def test_queue_is_a_label():
    assert render(queue="blue")["metadata"]["labels"][names.LABEL_QUEUE] == "blue"
    assert names.LABEL_QUEUE not in render()["metadata"]["labels"]


def test_mesh_label_with_another_name_is_refused():
    """The operator labels all pods with the object's name, whatever the pod template asks for."""
    assert render(labels={names.LABEL_MESH: "trainab2cd"})["metadata"]["name"] == "trainab2cd"
    with pytest.raises(SpecError, match="its MonarchMesh, trainab2cd") as caught:
        render(labels={names.LABEL_MESH: "ddpmesh"})
    assert "--engine kubernetes" in caught.value.hint


@pytest.mark.parametrize(
    ("mesh", "phase"),
    [
        ({}, ObjectPhase.WAITING),
        ({"status": {"replicas": 2, "readyReplicas": 0}}, ObjectPhase.WAITING),
        ({"status": {"replicas": 2, "readyReplicas": 1}}, ObjectPhase.STARTED),
    ],
)
def test_its_phase(mesh, phase):
    assert MONARCHMESH.read_phase(mesh) is phase


@pytest.mark.parametrize(
    ("pod", "index"),
    [
        ("trainab2cd-0", 0),
        ("trainab2cd-12", 12),
        ("train-ab2cd-0", None),
        ("trainab2cd", None),
        ("otherab2cd-0", None),
    ],
)
def test_index_from_the_name_of_a_deleted_pod(pod, index):
    assert index_in_name(pod, "train-ab2cd") == index


def make_pod(controller: str) -> dict[str, Any]:
    owner = {"kind": "StatefulSet", "name": controller, "uid": "s1", "controller": True}
    labels = {names.LABEL_MESH: "trainab2cd", LABEL_INDEX: "1"}
    return {"metadata": {"name": "trainab2cd-1", "labels": labels, "ownerReferences": [owner]}}


def test_mesh_owns_the_pods_of_its_stateful_set():
    assert owns(make_pod("trainab2cd"), "the mesh's")
    assert not owns(make_pod("other"), "the mesh's")
    assert MONARCHMESH.index_of(make_pod("trainab2cd")) == 1


def test_resize_changes_the_replicas():
    mesh = merge(render(nodes=2), MONARCHMESH.resize(4))
    assert MONARCHMESH.num_pods(mesh) == 4


def test_idle_operator_is_named():
    mesh = render()
    mesh["metadata"]["creationTimestamp"] = AT
    (blocker,) = MONARCHMESH.find_blockers(mesh, [], [])
    assert (blocker.reason, blocker.since_s) == (OPERATOR_IDLE, 100.0)
    assert "Monarch's operator has not made the pods of MonarchMesh trainab2cd" in blocker.message
    assert "--engine kubernetes" in blocker.hint


def test_reason_for_a_refused_pod_is_shown():
    mesh = render(nodes=2)
    mesh["metadata"]["creationTimestamp"] = AT
    event = {
        "involvedObject": {"kind": "StatefulSet", "name": "trainab2cd"},
        "reason": "FailedCreate",
        "message": "create Pod trainab2cd-1 in StatefulSet trainab2cd failed error: pods "
        '"trainab2cd-1" is forbidden: exceeded quota: one, '
        "requested: pods=1, used: pods=1, limited: pods=1",
        "lastTimestamp": AT,
    }
    (blocker,) = MONARCHMESH.find_blockers(mesh, [], [event])
    assert 'quota "one"' in blocker.message

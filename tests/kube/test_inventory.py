"""Inventory of a cluster, from the objects that the user may read."""

from __future__ import annotations

from typing import Any

import pytest

from windlass.kube.objects.inventory import (
    count_gpus,
    describe_policies,
    find_default_class,
    find_enforcer,
    find_operators,
    shares_volumes,
)


def _node(name: str, *, gpus: str = "8", ready: str = "True", closed: bool = False) -> Any:
    return {
        "metadata": {"name": name},
        "spec": {"unschedulable": closed},
        "status": {
            "allocatable": {"cpu": "2", "nvidia.com/gpu": gpus},
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


def _pod(node: str, gpus: str, phase: str = "Running") -> Any:
    container = {"resources": {"limits": {"nvidia.com/gpu": gpus}}}
    return {"spec": {"nodeName": node, "containers": [container]}, "status": {"phase": phase}}


def test_free_gpus() -> None:
    nodes = [
        _node("a"),
        _node("b"),
        _node("c", gpus="0"),
        _node("gone", ready="Unknown"),
        _node("closed", closed=True),
    ]
    pods = [_pod("a", "6"), _pod("b", "8", "Succeeded"), _pod("gone", "8")]
    counts = count_gpus(nodes, pods)
    assert counts.num_ready == 3
    gpus = counts.gpus["nvidia.com/gpu"]
    assert (gpus.num_nodes, gpus.num_total, gpus.num_free, gpus.most_free) == (2, 16, 10, 8)


def test_no_gpus() -> None:
    assert count_gpus([_node("a", gpus="0")], []).gpus == {}
    assert count_gpus([], []).gpus == {}


def test_operators_and_their_versions() -> None:
    groups = [
        {"name": "kueue.x-k8s.io", "versions": [{"version": "v1beta2"}, {"version": "v1beta1"}]},
        {"name": "kubeflow.org", "versions": [{"version": "v1"}]},
    ]
    kueue = {
        "metadata": {
            "name": "workloads.kueue.x-k8s.io",
            "labels": {"app.kubernetes.io/version": "v0.19.2"},
        }
    }
    found, absent = find_operators(groups, [kueue])
    assert found == {"Kueue": "kueue.x-k8s.io v1beta2, v1beta1, release v0.19.2"}
    assert "training-operator" in absent, "kubeflow.org alone may be another operator's"
    image = "registry.invalid:5000/kubeflow/training-operator:v1.9.4@sha256:00"
    runs = {
        "metadata": {"name": "training-operator"},
        "spec": {"template": {"spec": {"containers": [{"image": image}]}}},
    }
    tagged, _ = find_operators(groups, [], [runs])
    assert tagged["training-operator"] == "kubeflow.org v1, release v1.9.4"
    unread, _ = find_operators(groups, [])
    assert unread["training-operator"] == "kubeflow.org v1"


@pytest.mark.parametrize(
    ("provisioner", "shared"),
    [("nfs.csi.k8s.io", True), ("ebs.csi.aws.com", False), ("who/knows", None)],
)
def test_storage_classes_for_many_nodes(provisioner: str, shared: bool | None) -> None:
    assert shares_volumes(provisioner) is shared


def test_the_default_class() -> None:
    annotations = {"storageclass.kubernetes.io/is-default-class": "true"}
    default = {"metadata": {"name": "b", "annotations": annotations}}
    assert find_default_class([{"metadata": {"name": "a"}}, default]) is default
    assert find_default_class([]) is None


def test_network_policies() -> None:
    assert find_enforcer(["kube-proxy", "calico-node"]) == "calico"
    assert find_enforcer(["kube-proxy"]) == ""
    assert describe_policies([]) == "no policy in the namespace"
    deny = {"spec": {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}}
    text = describe_policies([deny, {"spec": {"podSelector": {"matchLabels": {"a": "b"}}}}])
    assert text == "2 in the namespace, egress and ingress of all pods restricted"

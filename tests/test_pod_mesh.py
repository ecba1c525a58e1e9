"""Hosts of a mesh from its pods: their order, their ports, and missing ones."""

from __future__ import annotations

import pytest

from windlass.errors import EngineError
from windlass.monarch.pod_mesh import make_addresses

JOB = "batch.kubernetes.io/job-completion-index"
SET = "apps.kubernetes.io/pod-index"


def make_pod(index, label=SET, *, ready="True", env=()):
    labels = {} if index is None else {label: str(index)}
    return {
        "metadata": {"name": f"pod-{index}", "labels": labels},
        "spec": {"containers": [{"name": "worker", "env": list(env)}]},
        "status": {
            "podIP": f"10.0.0.{index}",
            "conditions": [{"type": "Ready", "status": ready}],
        },
    }


@pytest.mark.parametrize("label", [JOB, SET])
def test_hosts_are_ordered_by_index(label):
    pods = [make_pod(index, label) for index in (2, 0, 1)]
    assert make_addresses(pods) == [f"tcp://10.0.0.{index}:26600" for index in range(3)]


def test_pod_may_define_its_port():
    env = [{"name": "OTHER"}, {"name": "MONARCH_PORT", "value": "4444"}]
    assert make_addresses([make_pod(0, env=env)]) == ["tcp://10.0.0.0:4444"]


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([make_pod(0), make_pod(1, ready="False")], "pod pod-1 is not ready"),
        ([make_pod(0), make_pod(2)], "no pod has index 1"),
        ([make_pod(None)], "pod pod-None has no index label"),
    ],
)
def test_a_mesh_that_is_not_complete(pods, message):
    with pytest.raises(EngineError, match=message):
        make_addresses(pods)


def make_over(index, **status):
    """Return a pod that has ended and was replaced."""
    pod = make_pod(index)
    pod["status"] = {**pod["status"], "podIP": "10.9.9.9", **status}
    return pod


def test_ended_pods_are_not_hosts():
    deleted = make_over(1)
    deleted["metadata"]["deletionTimestamp"] = "2026-01-31T12:00:00Z"
    pods = [make_pod(0), make_pod(1), make_over(0, phase="Failed"), deleted]
    assert make_addresses(pods) == make_addresses(pods[::-1]) == make_addresses(pods[:2])
    with pytest.raises(EngineError, match="all pods of the mesh have ended, including pod-0"):
        make_addresses([make_over(0, phase="Succeeded")])


def test_newer_of_two_running_pods_is_used():
    pods = [make_pod(0), make_over(0)]
    for pod, at in zip(pods, ("2026-01-31T12:00:09Z", "2026-01-31T12:00:01Z"), strict=True):
        pod["metadata"]["creationTimestamp"] = at
    assert make_addresses(pods) == ["tcp://10.0.0.0:26600"]


def test_an_address_of_ipv6_is_in_brackets():
    pod = make_pod(0)
    pod["status"]["podIP"] = "fd00::7"
    assert make_addresses([pod]) == ["tcp://[fd00::7]:26600"]

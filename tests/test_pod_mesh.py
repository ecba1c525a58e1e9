"""The hosts of a mesh from its pods: their order, their ports, and what is missing."""

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
def test_hosts_are_in_the_order_of_their_indexes(label):
    pods = [make_pod(index, label) for index in (2, 0, 1)]
    assert make_addresses(pods) == [f"tcp://10.0.0.{index}:26600" for index in range(3)]


def test_a_pod_may_say_its_port():
    env = [{"name": "OTHER"}, {"name": "MONARCH_PORT", "value": "4444"}]
    assert make_addresses([make_pod(0, env=env)]) == ["tcp://10.0.0.0:4444"]


@pytest.mark.parametrize(
    ("pods", "message"),
    [
        ([make_pod(0), make_pod(1, ready="False")], "pod pod-1 is not ready"),
        ([make_pod(0), make_pod(2)], "there is no pod of index 1"),
        ([make_pod(None)], "pod pod-None does not say which host it is"),
    ],
)
def test_a_mesh_that_is_not_complete(pods, message):
    with pytest.raises(EngineError, match=message):
        make_addresses(pods)

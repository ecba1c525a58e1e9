"""Slimmed objects keep exactly the fields that are read, so diagnoses of the recordings do not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kube.recorded import find_blockers, load, read_dead_pods, timeline

from windlass.kube.objects.fields import slim_any, slim_node, slim_pod

SEEN = sorted(path.stem for path in (Path(__file__).parent / "seen").glob("*.json"))
NOISE = {"managedFields": [{"manager": "kubelet"}], "annotations": {"a": "b"}}


@pytest.mark.parametrize("name", SEEN)
def test_diagnoses_of_slim_pods_do_not_change(name: str) -> None:
    seen = load(name)
    slim = [slim_pod(pod) for pod in seen.pods]
    more = {"claims": seen.claims}
    assert find_blockers(seen.job, slim, seen.events, seen.quotas, **more) == seen.blockers()
    assert read_dead_pods(slim, seen.events) == read_dead_pods(seen.pods, seen.events)
    assert timeline(slim) == timeline(seen.pods)


def test_unused_fields_are_dropped() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", **NOISE},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "image": "i", "env": [{"name": "A", "value": "1"}]}],
            "volumes": [{"name": "s", "secret": {}}, {"persistentVolumeClaim": {"claimName": "d"}}],
        },
        "status": {"phase": "Running", "podIPs": [{"ip": "10.0.0.1"}]},
    }
    assert slim_pod(pod) == {
        "kind": "Pod",
        "metadata": {"name": "a", "uid": "u", "resourceVersion": "7"},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "image": "i"}],
            "volumes": [{"persistentVolumeClaim": {"claimName": "d"}}],
        },
        "status": {"phase": "Running"},
    }
    assert "managedFields" not in json.dumps(slim_any(pod))
    node = {
        "metadata": {"name": "n"},
        "spec": {"taints": [], "podCIDR": "x"},
        "status": {"images": []},
    }
    assert slim_node(node) == {"metadata": {"name": "n"}, "spec": {"taints": []}, "status": {}}

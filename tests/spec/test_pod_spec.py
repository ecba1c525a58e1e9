"""Pod specs: accepted settings, and the message for each mistake before anything is created."""

from __future__ import annotations

import pytest

from windlass.errors import SpecError
from windlass.spec.pod_spec import PodSpec, Toleration, read_toleration
from windlass.spec.storage import read_secret, read_volume


def test_an_image_is_enough():
    pod = PodSpec(image="torch:1")
    assert (pod.gpus, pod.run_as, pod.ttl_s, pod.spread) == (0, 1000, 86400.0, "soft")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"image": ""}, "no image"),
        ({"image": "a b"}, "contains a space"),
        ({"namespace": "My.Space"}, "invalid namespace"),
        ({"memory": "512"}, "--memory 512 is less than 1 MiB"),
        ({"cpus": "x"}, "--cpus must be a number of CPUs"),
        ({"shm": "x"}, "--shm must be an amount"),
        ({"ephemeral_storage": "x"}, "--ephemeral-storage must be an amount"),
        ({"shm": "2Gi", "memory": "1Gi"}, "--shm 2Gi exceeds --memory 1Gi"),
        ({"gpus": -1}, "--gpus must be at least 0"),
        ({"gpu_type": "A100"}, "--gpu-type A100 requires GPUs"),
        ({"gpus": 1, "gpu_type": "A 100"}, "invalid label value"),
        ({"gpu_resource": "a b"}, "--gpu-resource: invalid key 'a b'"),
        ({"requests": {"gpus": "1"}}, "unknown resource 'gpus'"),
        ({"requests": {"cpus": "2"}, "cpus": "1"}, "--request cpus=2 exceeds the limit 1"),
        ({"requests": {"memory": "x"}}, "--request memory must be an amount"),
        ({"node_selector": {"a b": "c"}}, "--node-selector: invalid key 'a b'"),
        ({"node_selector": {"a": "b|-"}}, "invalid label value"),
        ({"labels": {"a": "x" * 64}}, "invalid label value"),
        ({"labels": {"a": "b|c"}}, "invalid label value"),
        ({"labels": {"windlass.dev/job": "x"}}, "is set by Windlass itself"),
        ({"annotations": {"-": "x"}}, "--annotation: invalid key '-'"),
        ({"spread": "wide"}, "--spread must be one of soft, hard, none"),
        ({"pack": "a b"}, "--pack: invalid key 'a b'"),
        ({"priority_class": "High"}, "--priority-class: invalid object name 'High'"),
        ({"service_account": "a b"}, "--service-account: invalid object name 'a b'"),
        ({"pull_secrets": ("A",)}, "--pull-secret: invalid object name 'A'"),
        ({"queue": "A"}, "--queue: invalid object name 'A'"),
        ({"run_as": -1}, "--run-as must be a user ID"),
        ({"ttl_s": -1.0}, "--ttl must be at least 0"),
        (
            {"volumes": (read_volume("a:/x"), read_volume("b:/x"))},
            "/x is mounted twice",
        ),
        (
            {"volumes": (read_volume("a:/x"),), "secrets": (read_secret("s:/x"),)},
            "/x is mounted twice",
        ),
    ],
    ids=str,
)
def test_refused(wrong, says):
    with pytest.raises(SpecError) as caught:
        PodSpec(**{"image": "torch:1", **wrong})
    assert says in caught.value.message


def test_missing_image_has_a_hint():
    with pytest.raises(SpecError) as caught:
        PodSpec(image="")
    for way in ("--image", "WINDLASS_IMAGE", "windlass.toml"):
        assert way in caught.value.hint


@pytest.mark.parametrize(
    ("text", "taint"),
    [
        ("spot", Toleration(key="spot")),
        ("pool=gpu", Toleration(key="pool", value="gpu")),
        ("pool=gpu:NoSchedule", Toleration(key="pool", value="gpu", effect="NoSchedule")),
        ("nvidia.com/gpu:NoExecute", Toleration(key="nvidia.com/gpu", effect="NoExecute")),
        ("*", Toleration()),
    ],
)
def test_tolerations(text, taint):
    assert read_toleration(text) == taint


@pytest.mark.parametrize("text", ["", "a b", "a=b c", "a:Never", ":NoSchedule", "*=x"])
def test_refused_tolerations(text):
    with pytest.raises(SpecError, match="invalid --toleration"):
        read_toleration(text)

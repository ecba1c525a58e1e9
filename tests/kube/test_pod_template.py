"""The pod template: its user, its environment, and its placement."""

from __future__ import annotations

import pytest
from kube.plans import FILES, make_pod_plan

from windlass import names
from windlass.engines.dialects.kubernetes import make_job
from windlass.errors import SpecError
from windlass.kube.objects.pod_template import make_template, pull_policy
from windlass.spec.pod_spec import PodSize, read_toleration
from windlass.spec.storage import read_secret, read_volume


def spec_of(**asked):
    return make_job(make_pod_plan(**asked), FILES.names)["spec"]["template"]["spec"]


def container_of(**asked):
    (container,) = spec_of(**asked)["containers"]
    return container


@pytest.mark.parametrize(
    ("image", "policy"),
    [
        ("torch", "Always"),
        ("torch:latest", "Always"),
        ("torch:2.1", "IfNotPresent"),
        ("host:5000/torch", "Always"),
        ("host:5000/torch:2.1", "IfNotPresent"),
        ("torch@sha256:00", "IfNotPresent"),
        ("torch:latest@sha256:00", "IfNotPresent"),
    ],
)
def test_moving_tag_is_always_pulled(image, policy):
    assert pull_policy(image) == policy


def test_requests_default_to_the_limits():
    same = container_of(cpus="2", memory="1Gi", gpus=1)["resources"]
    assert (
        same["limits"] == same["requests"] == {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": "1"}
    )
    less = container_of(cpus="2", requests={"cpus": "1", "memory": "1Gi"})["resources"]
    assert less == {"limits": {"cpu": "2"}, "requests": {"cpu": "1", "memory": "1Gi"}}
    assert "resources" not in container_of()


def test_workers_differ_from_the_first_pod_only_in_size():
    workers = PodSize(cpus="4", memory="2Gi", gpus=1)
    plan = make_pod_plan(nodes=3, cpus="2", requests={"cpus": "1"}, shm="1Gi", workers=workers)
    first, other = (
        make_template(plan, FILES.names, is_worker=is_worker) for is_worker in (False, True)
    )
    resources = other["spec"]["containers"][0].pop("resources")
    assert resources["limits"] == {"cpu": "4", "memory": "2Gi", "nvidia.com/gpu": "1"}
    assert resources["requests"] == resources["limits"]
    assert first["spec"]["containers"][0].pop("resources") == {
        "limits": {"cpu": "2"},
        "requests": {"cpu": "1"},
    }
    [gpus] = [one for one in other["spec"]["tolerations"] if one["key"] == "nvidia.com/gpu"]
    other["spec"]["tolerations"].remove(gpus)
    assert first == other


def test_invalid_worker_size_is_refused():
    with pytest.raises(SpecError, match="--shm 4Gi exceeds --memory 2Gi"):
        make_pod_plan(nodes=2, shm="4Gi", workers=PodSize(memory="2Gi"))


def test_gpus_of_another_maker():
    asked = {"gpus": 2, "gpu_resource": "amd.com/gpu", "gpu_label": "amd.com/gpu.product-name"}
    spec = spec_of(**asked, gpu_type="MI300X")
    assert spec["containers"][0]["resources"]["limits"] == {"amd.com/gpu": "2"}
    assert spec["nodeSelector"] == {"amd.com/gpu.product-name": "MI300X"}
    assert {"key": "amd.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in spec[
        "tolerations"
    ]


@pytest.mark.parametrize(
    ("asked", "shm"),
    [
        ({}, {"medium": "Memory"}),
        ({"memory": "4Gi"}, {"medium": "Memory", "sizeLimit": "2048Mi"}),
        ({"memory": "4Gi", "shm": "1Gi"}, {"medium": "Memory", "sizeLimit": "1Gi"}),
    ],
)
def test_shared_memory_is_half_of_the_memory(asked, shm):
    spec = spec_of(**asked)
    assert {"name": "shm", "emptyDir": shm} in spec["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in spec["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("run_as", "security"),
    [
        (1000, {"runAsNonRoot": True, "runAsUser": 1000, "runAsGroup": 1000, "fsGroup": 1000}),
        (0, {"runAsNonRoot": False, "runAsUser": 0, "runAsGroup": 0, "fsGroup": 0}),
        (None, {"runAsNonRoot": True}),
    ],
)
def test_security_context(run_as, security):
    spec = spec_of(run_as=run_as)
    found = spec["securityContext"]
    assert found["seccompProfile"] == {"type": "RuntimeDefault"}
    assert {key: found[key] for key in security} == security
    assert ("runAsUser" in found) == (run_as is not None)
    mode = spec["volumes"][0]["secret"]["defaultMode"]
    assert mode == (0o444 if run_as is None else 0o440)
    assert spec["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_pod_has_no_token_and_no_service_variables():
    spec = spec_of()
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False


def test_pod_grace_exceeds_the_grace_of_ranks():
    assert spec_of(grace_s=2.5)["terminationGracePeriodSeconds"] == 13


def test_pod_leaves_a_lost_node_after_10_s():
    lost = [t for t in spec_of()["tolerations"] if "node.kubernetes.io" in t["key"]]
    assert [toleration["tolerationSeconds"] for toleration in lost] == [10, 10]


def test_secrets_are_references():
    asked = ("HF_TOKEN=hf:token", "all", "ssh:/keys")
    spec = spec_of(secrets=tuple(map(read_secret, asked)))
    container = spec["containers"][0]
    reference = {"secretKeyRef": {"name": "hf", "key": "token"}}
    assert {"name": "HF_TOKEN", "valueFrom": reference} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "all"}}]
    assert {"name": "keys", "mountPath": "/keys", "readOnly": True} in container["volumeMounts"]
    assert spec["volumes"][-1]["secret"]["secretName"] == "ssh"


def test_variables_of_ranks_are_not_in_the_template():
    found = {variable["name"] for variable in container_of(env={"MINE": "x"})["env"]}
    assert "MINE" not in found
    assert {names.POD_IP, names.POD_UID, names.LEAD, names.NODE_FAILURES, "HOME", "USER"} <= found


@pytest.mark.parametrize(
    ("spread", "nodes", "soft", "hard"),
    [
        ("soft", 2, True, False),
        ("soft", 1, False, False),
        ("hard", 2, False, True),
        ("none", 2, 0, 0),
    ],
)
def test_pods_spread(spread, nodes, soft, hard):
    spec = spec_of(spread=spread, nodes=nodes)
    assert ("topologySpreadConstraints" in spec) == bool(soft)
    assert ("podAntiAffinity" in spec.get("affinity", {})) == bool(hard)


def test_pods_are_packed():
    affinity = spec_of(pack="rack")["affinity"]["podAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]
    assert term["topologyKey"] == "rack"
    assert term["labelSelector"] == {"matchLabels": {names.LABEL_JOB: "train-ab2cd"}}


def test_tolerations():
    asked = tuple(map(read_toleration, ("*", "a=b:NoExecute")))
    assert spec_of(tolerations=asked)["tolerations"][-2:] == [
        {"operator": "Exists"},
        {"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"},
    ]


def test_host_path_volume():
    volume = read_volume("/mnt/x:/x:ro", allow_host_path=True)
    spec = spec_of(volumes=(volume,))
    assert spec["volumes"][-1] == {"name": "x", "hostPath": {"path": "/mnt/x"}}
    assert spec["containers"][0]["volumeMounts"][-1]["readOnly"] is True


def test_patch_can_change_any_field():
    patch = {
        "metadata": {"labels": {"x": "y"}},
        "spec": {"hostNetwork": True, "containers": [{"name": "windlass", "tty": True}]},
    }
    template = make_job(make_pod_plan(patch=patch), FILES.names)["spec"]["template"]
    assert template["metadata"]["labels"]["x"] == "y"
    assert template["spec"]["hostNetwork"] is True
    assert template["spec"]["containers"][0]["tty"] is True
    assert template["spec"]["containers"][0]["image"]


def test_the_interpreter():
    assert container_of()["command"][0] == "python3"
    assert container_of(python="/opt/py/bin/python")["command"][0] == "/opt/py/bin/python"

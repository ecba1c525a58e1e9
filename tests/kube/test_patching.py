"""Patches of a pod: null deletes a field, lists are merged by name, and all other fields stay unchanged."""

from __future__ import annotations

import copy
import json
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass.errors import SpecError
from windlass.kube.objects.pod_template import apply_patch

TEMPLATE = {
    "metadata": {"labels": {"a": "1"}},
    "spec": {
        "subdomain": "x",
        "tolerations": [{"key": "a"}],
        "containers": [
            {
                "name": "windlass",
                "image": "torch:1",
                "command": ["python3", "-I"],
                "env": [
                    {"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                    {"name": "B", "value": "b"},
                ],
                "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                "resources": {"limits": {"cpu": "1"}},
            }
        ],
        "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "1Gi"}}],
    },
}


def patch_container(**fields):
    spec = {"containers": [{"name": "windlass", **fields}]}
    (container,) = apply_patch(TEMPLATE, {"spec": spec})["spec"]["containers"]
    return container


def test_tables_are_merged():
    patched = apply_patch(TEMPLATE, {"metadata": {"labels": {"b": "2"}}})
    assert patched["metadata"]["labels"] == {"a": "1", "b": "2"}
    assert patched["spec"] == TEMPLATE["spec"]


def test_null_deletes():
    patched = apply_patch(TEMPLATE, {"metadata": {"labels": {"a": None, "z": None}}, "spec": None})
    assert patched == {"metadata": {"labels": {}}}


def test_containers_are_merged_by_name_and_new_ones_appended():
    patched = apply_patch(
        TEMPLATE,
        {
            "spec": {
                "containers": [{"name": "side", "image": "s"}, {"name": "windlass", "tty": True}]
            }
        },
    )
    first, second = patched["spec"]["containers"]
    assert first == {**TEMPLATE["spec"]["containers"][0], "tty": True}
    assert second == {"name": "side", "image": "s"}


def test_variables_are_merged_by_name_and_have_one_source():
    env = patch_container(env=[{"name": "A", "value": "x"}, {"name": "C", "value": "c"}])["env"]
    assert env == [
        {"name": "A", "value": "x"},
        {"name": "B", "value": "b"},
        {"name": "C", "value": "c"},
    ]


def test_mounts_are_merged_by_path_and_lists_without_names_are_replaced():
    container = patch_container(
        volumeMounts=[{"name": "shm", "mountPath": "/dev/shm", "readOnly": True}],
        command=["sh"],
    )
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm", "readOnly": True}]
    assert container["command"] == ["sh"]


def test_a_volume_has_one_source():
    volumes = [{"name": "shm", "emptyDir": {"sizeLimit": "2Gi"}}]
    merged = apply_patch(TEMPLATE, {"spec": {"volumes": volumes}})["spec"]["volumes"]
    assert merged == [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}]
    volumes = [{"name": "shm", "hostPath": {"path": "/x"}}]
    merged = apply_patch(TEMPLATE, {"spec": {"volumes": volumes}})["spec"]["volumes"]
    assert merged == volumes


def test_tolerations_are_added():
    patched = apply_patch(TEMPLATE, {"spec": {"tolerations": [{"key": "b"}]}})
    assert patched["spec"]["tolerations"] == [{"key": "a"}, {"key": "b"}]


def test_directives():
    env = patch_container(
        env=[{"name": "A", "$patch": "delete"}, {"name": "Z", "$patch": "delete"}]
    )
    assert env["env"] == [{"name": "B", "value": "b"}]
    env = patch_container(env=[{"$patch": "replace"}, {"name": "Z", "value": "z"}])
    assert env["env"] == [{"name": "Z", "value": "z"}]
    resources = patch_container(resources={"$patch": "replace", "requests": {"cpu": "2"}})
    assert resources["resources"] == {"requests": {"cpu": "2"}}


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ({"spec": {"containers": {"name": "x"}}}, "patch.spec.containers must not be a table"),
        ({"spec": {"containers": "x"}}, "patch.spec.containers must be a list"),
        ({"spec": {"containers": [{"image": "x"}]}}, "patch.spec.containers[0] has no name"),
        ({"spec": {"containers": ["x"]}}, "patch.spec.containers[0] must be a table"),
        ({"spec": {"subdomain": {"a": "b"}}}, "patch.spec.subdomain must not be a table"),
        ({"spec": {"subdomain": ["b"]}}, "patch.spec.subdomain must not be a list"),
        ({"metadata": {"labels": "x"}}, "patch.metadata.labels must be a table"),
        ({"spec": {"$patch": "undo"}}, "patch.spec: invalid $patch 'undo'"),
    ],
    ids=str,
)
def test_refused(patch, says):
    with pytest.raises(SpecError) as caught:
        apply_patch(TEMPLATE, patch)
    assert says in caught.value.message
    assert caught.value.hint


leaves = st.booleans() | st.integers() | st.text(max_size=5)
free = st.recursive(
    leaves,
    lambda inner: st.dictionaries(st.text("abcdef", min_size=1, max_size=4), inner, max_size=3),
    max_leaves=8,
)
patches = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), free, max_size=4)


@settings(deadline=None)
@given(patches)
def test_patching_is_idempotent_and_does_not_change_its_arguments(patch):
    before = copy.deepcopy((TEMPLATE, patch))
    once = apply_patch(TEMPLATE, patch)
    assert apply_patch(once, patch) == once
    assert (TEMPLATE, patch) == before
    assert once["spec"] == TEMPLATE["spec"]


@settings(deadline=None)
@given(patches)
def test_patch_of_an_empty_object_is_the_patch(patch):
    assert apply_patch({}, patch) == patch
    assert apply_patch(patch, {}) == patch
    assert apply_patch(patch, dict.fromkeys(patch)) == {}


@pytest.mark.cluster
@pytest.mark.parametrize(
    "patch",
    [
        {"metadata": {"labels": {"b": "2", "a": None}}},
        {"spec": {"containers": [{"name": "windlass", "command": ["sh"], "env": [{"name": "B"}]}]}},
        {"spec": {"containers": [{"name": "side", "image": "s"}]}},
        {"spec": {"volumes": [{"name": "shm", "$patch": "delete"}, {"name": "v", "emptyDir": {}}]}},
        {"spec": {"imagePullSecrets": [{"name": "r"}], "hostAliases": [{"ip": "1.1.1.1"}]}},
        {"spec": {"containers": [{"name": "windlass", "resources": {"limits": {"cpu": None}}}]}},
    ],
    ids=str,
)
def test_result_matches_kubectl(patch, tmp_path):
    pod = {"apiVersion": "v1", "kind": "Pod", **copy.deepcopy(TEMPLATE)}
    pod["metadata"]["name"] = "x"
    path = tmp_path / "pod.json"
    path.write_text(json.dumps(pod))
    words = ["patch", "--local", "-f", str(path), "--type=strategic", "-p", json.dumps(patch)]
    done = subprocess.run(
        ["kubectl", *words, "-o", "json"], capture_output=True, text=True, check=True, timeout=60
    )
    found = json.loads(done.stdout)
    assert _sorted(found) == _sorted(apply_patch(pod, patch))


def _sorted(value):
    """Sort lists of named objects, whose order kubectl changes, and drop empty values."""
    if isinstance(value, dict):
        return {k: s for k, v in value.items() if (s := _sorted(v)) not in ({}, [], None)}
    if isinstance(value, list):
        return sorted(map(_sorted, value), key=lambda item: json.dumps(item, sort_keys=True))
    return value

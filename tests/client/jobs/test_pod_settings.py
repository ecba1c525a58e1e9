"""Pods from settings. Every setting arrives, and a patch may be a table, YAML or a file."""

from __future__ import annotations

import sys

import pytest

from windlass.client.compute.nodes.compute_spec import decide
from windlass.client.jobs.node_settings import make_pod
from windlass.client.jobs.run import prepare_job
from windlass.errors import SpecError
from windlass.settings import read_settings
from windlass.spec.pod_spec import Toleration
from windlass.spec.storage import Claim, HostPath, SecretVariables


def pod_of(tmp_path, **flags):
    settings = read_settings(
        flags={"image": "torch:1", **flags}, environ={"HOME": str(tmp_path)}, start=tmp_path
    )
    return make_pod(settings)


def test_texts_become_records(tmp_path):
    pod = pod_of(
        tmp_path,
        cpus=4,
        memory="8Gi",
        requests={"cpus": 2},
        volumes=["data:/data"],
        secrets="hf",
        tolerations=["spot"],
        labels=["team=red"],
        namespace="mine",
        run_as="none",
        ttl_s="2h",
    )
    assert (pod.cpus, pod.memory, pod.requests, pod.namespace) == (
        "4",
        "8Gi",
        {"cpus": "2"},
        "mine",
    )
    assert pod.volumes == (Claim(claim="data", path="/data"),)
    assert pod.secrets == (SecretVariables(secret="hf"),)
    assert pod.tolerations == (Toleration(key="spot"),)
    assert (pod.labels, pod.run_as, pod.ttl_s) == ({"team": "red"}, None, 7200.0)


def test_mesh_pods_match_what_monarch_clients_look_for(tmp_path):
    pod = pod_of(tmp_path, mesh_name="ddpmesh", open_mesh=True, labels=["team=red"])
    assert pod.labels == {
        "app.kubernetes.io/name": "monarch-worker",
        "monarch.pytorch.org/mesh-name": "ddpmesh",
        "team": "red",
    }
    assert pod.open_ports == (26600,)
    assert pod_of(tmp_path).open_ports == ()
    with pytest.raises(SpecError, match="invalid Monarch mesh name 'ddp-mesh'"):
        pod_of(tmp_path, mesh_name="ddp-mesh")


@pytest.mark.parametrize(
    ("asked", "mesh"), [({}, "mine1"), ({"mesh_name": "ours"}, "ours"), ({"framework": "spmd"}, "")]
)
def test_the_mesh_of_a_job_has_the_name_of_the_job_without_dashes(tmp_path, asked, mesh):
    flags = {"framework": "monarch", "engine": "kubernetes", "image": "torch:1", **asked}
    prepared = prepare_job(tmp_path.exists, detach=True, flags=flags, job_id="mine-1")
    assert prepared.plan.pod.labels.get("monarch.pytorch.org/mesh-name", "") == mesh


def test_host_folders_have_a_separate_flag(tmp_path):
    with pytest.raises(SpecError, match="is a folder of the machine"):
        pod_of(tmp_path, volumes=["/a:/a"])
    pod = pod_of(tmp_path, volumes=["/a:/a"], allow_host_path=True)
    assert pod.volumes == (HostPath(source="/a", path="/a"),)


def test_a_patch_in_any_form(tmp_path):
    (tmp_path / "pod.yaml").write_text("spec:\n  hostNetwork: true\n")
    wanted = {"spec": {"hostNetwork": True}}
    for given in (wanted, "spec: {hostNetwork: true}", "pod.yaml", tmp_path / "pod.yaml"):
        assert pod_of(tmp_path, patch=given).patch == wanted


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("none.yaml", "cannot read the patch"),
        ("spec: [", "the patch is not valid YAML"),
        ("{}", "the patch must be a table"),
        ("- a: b", "the patch must be a table"),
        ("hostNetwork: true", "the patch has 'hostNetwork' at its top"),
    ],
)
def test_refused_patches(tmp_path, given, says):
    with pytest.raises(SpecError, match=says) as caught:
        pod_of(tmp_path, patch=given)
    assert "a patch looks like" in caught.value.hint


def test_a_patch_must_fit_json(tmp_path):
    with pytest.raises(
        SpecError, match="the patch has a value that JSON does not support"
    ) as caught:
        pod_of(tmp_path, patch="metadata: {annotations: {day: 2024-01-01}}")
    assert "in quotes" in caught.value.hint


MINE, THEIRS = sys.executable, "/opt/nobody-has-this-here/bin/python"


@pytest.mark.parametrize(
    ("engine", "exported", "flag", "python"),
    [
        ("kubernetes", MINE, None, ""),
        ("kubernetes", THEIRS, None, THEIRS),
        ("kubernetes", "python3.12", None, "python3.12"),
        ("kubernetes", MINE, MINE, MINE),
        ("statefulset", MINE, None, ""),
        ("local", MINE, None, MINE),
    ],
)
def test_exported_python_does_not_apply_to_pods(
    monkeypatch, caplog, engine, exported, flag, python
):
    """A shell exports its interpreter for this machine. Other sources mean the pods."""
    monkeypatch.setenv("WINDLASS_PYTHON", exported)
    flags = {"engine": engine, "image": "torch:1", "python": flag}
    assert prepare_job(["true"], detach=True, flags=flags).plan.python == python
    assert ("--python sets another" in caplog.text) == (python not in (exported, flag))


def test_exported_python_does_not_apply_to_computes(monkeypatch):
    monkeypatch.setenv("WINDLASS_PYTHON", MINE)
    wanted = decide({"engine": "kubernetes", "image": "torch:1"})
    assert (wanted.settings.python, wanted.fixed["python"]) == ("", "")
    assert decide({"engine": "local"}).settings.python == MINE


def test_settings_file_applies_to_pods(tmp_path, monkeypatch):
    (tmp_path / "windlass.toml").write_text(f'python = "{MINE}"')
    monkeypatch.chdir(tmp_path)
    flags = {"engine": "kubernetes", "image": "torch:1"}
    assert prepare_job(["true"], detach=True, flags=flags).plan.python == MINE

"""The mesh and controller of `export -e monarchmesh --plain`, without Windlass inside."""

from __future__ import annotations

from typing import Any

import pytest
from goldens import check_golden
from kube.plans import make_pod_plan

from windlass.cli.verbs.export import render_manifests
from windlass.engines.exports.monarch_workers import make_plain
from windlass.engines.exports.plain_export import load_plain
from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.spec.storage import read_volume

PLANS = {
    "guide": make_pod_plan(nodes=2, gpus=4, procs=4),
    "all": make_pod_plan(
        name="My trainers 2",
        nodes=4,
        namespace="team",
        queue="blue",
        cpus="2",
        memory="8Gi",
        spread="hard",
        service_account="trainer",
        volumes=(read_volume("new:1Gi:/out"),),
    ),
}


def render(name: str) -> list[dict[str, Any]]:
    return make_plain(PLANS[name], script="print(1)\n", rendezvous=Rendezvous())


def find(documents: list[dict[str, Any]], kind: str) -> dict[str, Any]:
    (document,) = (one for one in documents if one["kind"] == kind)
    return document


@pytest.mark.parametrize("name", PLANS)
def test_manifest_matches_the_golden_files(name):
    documents = render(name)
    check_golden(f"plain-monarchmesh/{name}.yaml", documents)
    assert "windlass" not in render_manifests(documents).lower()


def test_engine_uses_this_export():
    assert load_plain("monarchmesh") is make_plain


def test_default_names_are_those_of_the_guide():
    documents = render("guide")
    assert {one["metadata"]["namespace"] for one in documents} == {"monarch-tests"}
    assert find(documents, "MonarchMesh")["metadata"]["name"] == "ddpmesh"
    assert find(documents, "Pod")["metadata"]["name"] == "ddp-controller"
    documents = render("all")
    assert {one["metadata"]["namespace"] for one in documents} == {"team"}
    assert find(documents, "MonarchMesh")["metadata"]["name"] == "mytrainers2"
    assert find(documents, "Pod")["metadata"]["name"] == "mytrainers2-controller"


def test_controller_may_only_read_pods():
    documents = render("guide")
    (rule,) = find(documents, "Role")["rules"]
    assert (rule["resources"], rule["verbs"]) == (["pods"], ["get", "list", "watch"])
    (account,) = find(documents, "RoleBinding")["subjects"]
    controller, mesh = find(documents, "Pod")["spec"], find(documents, "MonarchMesh")["spec"]
    assert controller["serviceAccountName"] == account["name"]
    assert controller["automountServiceAccountToken"] is True
    assert mesh["podTemplate"]["spec"]["automountServiceAccountToken"] is False


def test_workers_have_the_gpus_and_the_controller_none():
    documents = render("guide")
    worker, controller = (
        pod["containers"][0]
        for pod in (
            find(documents, "MonarchMesh")["spec"]["podTemplate"]["spec"],
            find(documents, "Pod")["spec"],
        )
    )
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == "4"
    assert worker["command"][:3] == ["python", "-u", "-c"]
    assert "nvidia.com/gpu" not in controller.get("resources", {}).get("limits", {})


def test_workers_and_controller_mount_the_same_claims():
    documents = render("all")
    claim = find(documents, "PersistentVolumeClaim")["metadata"]["name"]
    for pod in (
        find(documents, "MonarchMesh")["spec"]["podTemplate"]["spec"],
        find(documents, "Pod")["spec"],
    ):
        claims = [one.get("persistentVolumeClaim", {}).get("claimName") for one in pod["volumes"]]
        assert claim in claims


@pytest.mark.parametrize(
    ("plan", "rendezvous", "why"),
    [
        (PLANS["guide"], Rendezvous(backend="etcd", endpoint="e:2379"), "through their controller"),
        (make_pod_plan(nodes=4, min_nodes=2), Rendezvous(), "a fixed number of hosts"),
    ],
)
def test_unsupported_settings_are_refused(plan, rendezvous, why):
    with pytest.raises(SpecError, match=why):
        make_plain(plan, script=None, rendezvous=rendezvous)

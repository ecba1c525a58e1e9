"""The TrainJob of `export -e trainjob --plain`, written as the guides do and without Windlass inside."""

from __future__ import annotations

from typing import Any

import pytest
from goldens import check_golden
from kube.plans import make_pod_plan

from windlass.cli.verbs.export import render_manifests
from windlass.engines.exports.plain_export import load_plain
from windlass.engines.exports.torchrun_exports import make_plain_trainjob
from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.spec.storage import read_secret
from windlass.spec.work import Script

PLANS = {
    "cpu": make_pod_plan(nodes=2, procs=2, timeout_s=60.0, queue="q", cpus="500m", memory="1Gi"),
    "gpu": make_pod_plan(
        nodes=2, gpus=8, procs=8, work=Script(path="/app/main.py"), in_image=True, restarts=2
    ),
}


def render(plan: Any) -> list[dict[str, Any]]:
    script = None if plan.pod.in_image else "print(1)\n"
    return make_plain_trainjob(plan, script=script, rendezvous=Rendezvous())


@pytest.mark.parametrize("name", PLANS)
def test_manifest_matches_the_golden_files(name):
    documents = render(PLANS[name])
    check_golden(f"plain-trainjob/{name}.yaml", documents)
    assert "windlass" not in render_manifests(documents).lower()


@pytest.mark.parametrize("version", ["2.0", "v2.1.0"])
def test_fields_of_older_operators(version):
    """Trainer 2.0 and 2.1 have overrides, which can express less, and no deadline."""
    make_older = load_plain("trainjob", version)
    documents = make_older(PLANS["cpu"], script="print(1)\n", rendezvous=Rendezvous())
    check_golden("plain-trainjob/older.yaml", documents)
    spec = documents[-1]["spec"]
    assert not {"runtimePatches", "activeDeadlineSeconds"} & set(spec)
    (override,) = spec["podTemplateOverrides"]
    assert override["targetJobs"] == [{"name": "node"}]


def test_engine_uses_this_export():
    assert load_plain("trainjob") is make_plain_trainjob
    assert load_plain("trainjob", "2.2") is load_plain("trainjob", "3.0") is make_plain_trainjob
    with pytest.raises(SpecError, match="invalid operator version"):
        load_plain("trainjob", "new")


def test_export_uses_the_cluster_runtime_without_torchrun_flags():
    spec = render(PLANS["cpu"])[-1]["spec"]
    assert (spec["runtimeRef"]["kind"], spec["runtimeRef"]["name"]) == (
        "ClusterTrainingRuntime",
        "torch-distributed",
    )
    assert spec["trainer"]["command"] == ["torchrun", "/code/train.py", "--lr", "0.1"]
    names = {variable["name"] for variable in spec["trainer"]["env"]}
    assert not names & {"RANK", "MASTER_ADDR", "NNODES", "PET_NNODES"}
    own = render(make_pod_plan(runtime="ours"))[-1]["spec"]["runtimeRef"]
    assert (own["kind"], own["name"]) == ("TrainingRuntime", "ours")


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"nodes": 4, "min_nodes": 2}, "a fixed number of nodes"),
        ({"priority_class": "high"}, "--priority-class: only its runtime can"),
        ({"patch": {"spec": {"hostNetwork": True}}}, "--patch: only its runtime can"),
        ({"secrets": (read_secret("more"),)}, "--secret NAME: only its runtime can"),
    ],
)
def test_settings_without_a_trainjob_field_are_refused(asked, why):
    with pytest.raises(SpecError, match=why):
        render(make_pod_plan(**asked))


def test_rendezvous_is_refused():
    elsewhere = Rendezvous(backend="etcd", endpoint="e:2379")
    with pytest.raises(SpecError, match="sets its rendezvous"):
        make_plain_trainjob(PLANS["cpu"], script=None, rendezvous=elsewhere)

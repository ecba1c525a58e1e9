"""The PyTorchJob of `export -e pytorchjob --plain`, written as the guides do and without Windlass inside."""

from __future__ import annotations

import pytest
from goldens import check_golden
from kube.plans import make_pod_plan

from windlass.cli.verbs.export import render_manifests
from windlass.engines.exports.plain_export import load_plain
from windlass.engines.exports.torchrun_exports import make_plain_pytorchjob
from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.spec.work import Script

PLANS = {
    "cpu": make_pod_plan(nodes=2, procs=2, timeout_s=60.0, queue="q", cpus="500m", memory="1Gi"),
    "gpu": make_pod_plan(
        nodes=2, gpus=8, procs=8, work=Script(path="/app/main.py"), in_image=True, restarts=2
    ),
    "elastic": make_pod_plan(nodes=4, min_nodes=2, procs=2),
    "one": make_pod_plan(),
}


def render(name: str) -> list[dict]:
    plan = PLANS[name]
    script = None if plan.pod.in_image else "print(1)\n"
    return make_plain_pytorchjob(plan, script=script, rendezvous=Rendezvous())


@pytest.mark.parametrize("name", PLANS)
def test_manifest_matches_the_golden_files(name):
    documents = render(name)
    check_golden(f"plain-pytorchjob/{name}.yaml", documents)
    assert "windlass" not in render_manifests(documents).lower()


def test_export_has_the_given_name():
    """Without a name it has the job's id, so two exports are two jobs."""
    named = make_plain_pytorchjob(
        make_pod_plan(name="torchrun-cpu", nodes=2),
        script="print(1)\n",
        rendezvous=Rendezvous(),
    )
    assert [document["metadata"]["name"] for document in named] == [
        "torchrun-cpu-code",
        "torchrun-cpu",
    ]


def test_engine_without_a_launcher_is_refused():
    with pytest.raises(SpecError, match="raycluster have no launcher without Windlass") as refused:
        load_plain("raycluster")
    assert "omit --plain" in refused.value.hint


def test_engine_uses_this_export():
    assert load_plain("pytorchjob") is make_plain_pytorchjob


def test_master_and_workers_without_torchrun_flags():
    replicas = render("cpu")[-1]["spec"]["pytorchReplicaSpecs"]
    assert {kind: of["replicas"] for kind, of in replicas.items()} == {"Master": 1, "Worker": 1}
    (container,) = replicas["Worker"]["template"]["spec"]["containers"]
    assert container["name"] == "pytorch"
    assert container["command"] == ["torchrun", "/code/train.py", "--lr", "0.1"]
    names = {variable["name"] for variable in container["env"]}
    assert not names & {"RANK", "MASTER_ADDR", "NNODES", "PET_NNODES"}
    assert list(render("one")[-1]["spec"]["pytorchReplicaSpecs"]) == ["Master"]


def test_min_nodes_become_an_elastic_policy():
    spec = render("elastic")[-1]["spec"]
    assert spec["elasticPolicy"] == {"minReplicas": 2, "maxReplicas": 4, "rdzvBackend": "c10d"}
    assert list(spec["pytorchReplicaSpecs"]) == ["Worker"]


def test_rendezvous_is_refused():
    with pytest.raises(SpecError, match="sets its rendezvous"):
        make_plain_pytorchjob(
            PLANS["cpu"], script=None, rendezvous=Rendezvous(backend="etcd", endpoint="e:2379")
        )

"""The StatefulSet recipe: its names, golden files, rejections, and a training job without Windlass."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest
from goldens import check_golden
from kube.plans import make_pod_plan
from waits import wait_for

from windlass import names
from windlass.cli.verbs.export import render_manifests
from windlass.engines.engine_table import as_engine, make_compute_engine, make_engine, make_renderer
from windlass.engines.exports import statefulset
from windlass.engines.exports.torchrun_exports import make_plain_job
from windlass.errors import SpecError
from windlass.kube.objects.torchrun_pods import Rendezvous, unwrap_plan
from windlass.settings import read_settings
from windlass.spec.storage import read_secret, read_volume
from windlass.spec.work import Command, Function, Module, Script

ALL_REDUCE = """\
import os
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([float(dist.get_rank() + 1)])
dist.all_reduce(total)
print(f"rank {dist.get_rank()} group {os.environ['GROUP_RANK']} total {total.item():g}", flush=True)
dist.destroy_process_group()
"""
SIZE = {"cpus": "500m", "memory": "1Gi"}


def render(rendezvous=None, script="print(1)\n", **asked):
    plan = make_pod_plan(**{"engine": "statefulset", "nodes": 2, **asked})
    return statefulset.render(plan, script=script, rendezvous=rendezvous or Rendezvous())


def template_of(documents):
    return documents[-1]["spec"]["template"]["spec"]


def container_of(documents):
    (container,) = template_of(documents)["containers"]
    return container


def env_of(documents):
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container_of(documents)["env"]}


def test_recipe_matches_the_golden_file():
    check_golden("statefulset/default.yaml", render(procs=2, **SIZE))


def test_custom_recipe_matches_the_golden_file():
    documents = render(
        name="Mein Lauf",
        work=Module(name="pkg.train", args=("--lr", "a b")),
        script=None,
        namespace="mine",
        nodes=4,
        min_nodes=2,
        gpus=8,
        procs=8,
        restarts=3,
        env={"NCCL_DEBUG": "INFO"},
        secrets=(read_secret("HF_TOKEN=mine:key"),),
        volumes=tuple(map(read_volume, ("models-pvc:/models", "new:1Gi:/out"))),
        rendezvous=Rendezvous(backend="etcd-v2", endpoint="etcd:2379"),
    )
    check_golden("statefulset/own.yaml", documents)


def test_fine_tuning_recipe_matches_the_golden_file():
    documents = render(
        work=Module(
            name="windlass.recipes.train_framework",
            args=("--model-local-dir", "/models/llama", "--local-files-only"),
        ),
        script=None,
        nodes=4,
        gpus=1,
        image="registry.local/llm:1",
        rendezvous=Rendezvous(backend="etcd", endpoint="etcd:2379"),
    )
    check_golden("statefulset/train_framework.yaml", documents)
    claims = {m["mountPath"]: m["name"] for m in container_of(documents)["volumeMounts"]}
    assert {"/data", "/out", "/models"} <= claims.keys()


@pytest.mark.parametrize("words", [("--model", "org/name"), ("--out", "/models2/x")])
def test_claim_of_models_is_mounted_only_if_used(words):
    volumes = template_of(render(work=Script(path="a.py", args=words)))["volumes"]
    assert "models" not in {v["name"] for v in volumes}
    named = render(work=Script(path="a.py", args=("--model-local-dir=/models/x",)))
    assert "models" in {v["name"] for v in template_of(named)["volumes"]}


RECIPE = Script(path="train_framework.py")


def test_two_exports_do_not_share_a_name():
    named = [
        {(d["kind"], d["metadata"]["name"]) for d in render(job_id=job_id)}
        for job_id in ("job-1", "job-2")
    ]
    assert not named[0] & named[1]
    assert ("StatefulSet", "job-1") in named[0]


def test_export_has_no_variable_of_the_library_archive():
    plan = make_pod_plan(engine="statefulset", env={names.TRAIN: "/x", "A": "b"})
    plan, _ = unwrap_plan(plan)
    documents = statefulset.render(plan, script=None, rendezvous=Rendezvous())
    assert env_of(documents)["A"] == "b"
    assert names.TRAIN not in env_of(documents)


@pytest.mark.parametrize(
    "work",
    [
        Script(path="/app/k8s-training/k8s/train.py", args=("--epochs", "2")),
        Module(name="windlass.recipes.train"),
        Module(name="windlass.recipes.train_framework"),
    ],
    ids=lambda work: work.program,
)
def test_programs_of_the_guide_have_its_names(work):
    names = [document["metadata"]["name"] for document in render(work=work, script=None)]
    assert names == ["train-rdzv", "train-llm"]


def test_names_of_the_recipe():
    documents = render(procs=3, work=RECIPE)
    kinds = [(d["kind"], d["metadata"]["name"]) for d in documents]
    assert kinds == [
        ("ConfigMap", "train-llm-code"),
        ("Service", "train-rdzv"),
        ("StatefulSet", "train-llm"),
    ]
    spec = documents[-1]["spec"]
    assert spec["podManagementPolicy"] == "Parallel"
    assert spec["selector"]["matchLabels"] == {"app": "train-llm"}
    assert documents[1]["spec"]["publishNotReadyAddresses"] is True
    assert container_of(documents)["name"] == "trainer"
    env = env_of(documents)
    assert (env["NNODES"], env["NPROC_PER_NODE"], env["MASTER_PORT"]) == ("2", "3", "29500")
    assert env["MASTER_ADDR"] == "train-llm-0.train-rdzv"
    assert env["RANK"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    for name in ("HF_TOKEN", "HUGGINGFACE_HUB_TOKEN"):
        assert env[name]["secretKeyRef"] == {
            "name": "hf-token",
            "key": "HUGGINGFACE_HUB_TOKEN",
            "optional": True,
        }
    assert env["NCCL_DEBUG"] == "INFO"
    for name in ("NCCL_SOCKET_IFNAME", "TORCH_NCCL_ASYNC_ERROR_HANDLING"):
        assert env[name]
    claims = {
        v["name"]: v["persistentVolumeClaim"]["claimName"]
        for v in template_of(documents)["volumes"]
        if "persistentVolumeClaim" in v
    }
    assert claims == {"data": "datasets-pvc", "out": "outputs-pvc"}
    assert template_of(documents)["topologySpreadConstraints"]


def test_export_does_not_mention_windlass():
    text = render_manifests(render(env={"MINE": "x"}))
    assert "windlass" not in text.lower()
    assert "TORCHELASTIC" not in text


def test_volume_replaces_a_claim():
    volumes = template_of(render(volumes=(read_volume("mine:/data"),)))["volumes"]
    assert [v["name"] for v in volumes if "persistentVolumeClaim" in v] == ["out", "data"]


@pytest.mark.parametrize("name", ["2 fast", "日本", "x" * 200])
def test_any_name_is_made_valid(name):
    documents = render(name=name)
    for document in documents:
        assert len(document["metadata"]["name"]) <= 63
    assert len(documents[-1]["metadata"]["name"]) <= 52  # a label adds a hash to this name


@pytest.mark.parametrize(
    ("work", "words"),
    [
        (Script(path="a b.py", args=("x y",)), "'/code/a b.py' 'x y' &"),
        (Module(name="m", args=("-x",)), "--module m -x &"),
        (Command(argv=("nvidia-smi", "-L")), "--no-python nvidia-smi -L &"),
    ],
)
def test_torchrun_command(work, words):
    shell = container_of(render(work=work))["command"][2]
    assert words in shell
    assert subprocess.run(["sh", "-n", "-c", shell], check=False).returncode == 0


def test_functions_are_refused():
    with pytest.raises(SpecError, match="not functions"):
        render(work=Function(name="f", file="a.py"))


def test_other_rendezvous():
    shell = container_of(render(Rendezvous(backend="etcd-v2", endpoint="etcd:2379")))["command"][2]
    assert "--rdzv-backend=etcd-v2" in shell
    other = container_of(render(Rendezvous(backend="etcd", endpoint="etcd:2379")))["command"][2]
    assert other == shell
    assert "endpoint=etcd:2379" in shell
    assert "is_host" not in shell
    with pytest.raises(SpecError, match="requires the address of a server"):
        Rendezvous(backend="etcd-v2")


def test_a_taken_folder_is_refused():
    with pytest.raises(SpecError, match="/code is already in use"):
        render(volumes=(read_volume("mine:/code"),))


def test_recipe_can_only_be_exported(tmp_path):
    settings = read_settings(
        flags={"engine": "statefulset"}, environ={"HOME": str(tmp_path)}, start=tmp_path
    )
    renderer = make_renderer("statefulset", settings)
    assert not hasattr(renderer, "submit")
    for call in (
        lambda: make_engine("statefulset", settings),
        lambda: make_compute_engine("statefulset", settings),
        lambda: as_engine(renderer),
    ):
        with pytest.raises(SpecError, match="only exported") as caught:
            call()
        assert "kubectl apply" in caught.value.hint


def kubectl(namespace: str, *words: str, given: str | None = None) -> str:
    done = subprocess.run(
        ["kubectl", "-n", namespace, *words],
        input=given,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def make_claims(namespace: str, *names: str) -> None:
    for name in names:
        spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}}
        kubectl(namespace, "apply", "-f", "-", given=json.dumps({**claim, "spec": spec}))


def lines_of(namespace: str, label: str) -> list[str]:
    found = kubectl(namespace, "logs", "-l", label, "--tail=-1", "--ignore-errors").splitlines()
    return sorted(line for line in found if line.startswith(("rank ", "training ")))


@pytest.mark.cluster
def test_recipe_trains_and_its_pods_stay_finished(space):
    make_claims(space.namespace, "datasets-pvc", "outputs-pvc")
    documents = render(script=ALL_REDUCE, image=space.image, name="train-llm", **SIZE)
    text = render_manifests(documents)
    kubectl(space.namespace, "apply", "-f", "-", given=text)
    try:
        stay = "training is finished; this pod stays until it is scaled down or deleted"
        wanted = ["rank 0 group 0 total 3", "rank 1 group 1 total 3", stay, stay]
        wait_for(
            lambda: lines_of(space.namespace, "app=train-llm") == wanted, f"logs: {wanted}", 150
        )
        # The kubelet restarts the ended container, which must not train again. The kill may end its own
        # process before it can report success, hence 137.
        kill = ["kubectl", "-n", space.namespace, "exec", "train-llm-0", "--", "kill", "1"]
        assert subprocess.run(kill, capture_output=True, timeout=60).returncode in (0, 137)
        path = "jsonpath={.status.containerStatuses[0].restartCount}"
        wait_for(
            lambda: kubectl(space.namespace, "get", "pod", "train-llm-0", "-o", path) == "1",
            "the container was started again",
        )
        wait_for(
            lambda: kubectl(space.namespace, "logs", "train-llm-0").splitlines() == [stay],
            "it stays finished",
        )
    finally:
        kubectl(space.namespace, "delete", "-f", "-", "--wait=false", given=text)


@pytest.mark.cluster
def test_a_plain_job_trains_and_ends(space):
    plan = make_pod_plan(job_id="plain-ends2", nodes=2, image=space.image, **SIZE)
    text = render_manifests(make_plain_job(plan, script=ALL_REDUCE, rendezvous=Rendezvous()))
    kubectl(space.namespace, "apply", "-f", "-", given=text)
    try:
        path = "jsonpath={.status.conditions[?(@.type=='Complete')].status}"
        wait_for(
            lambda: kubectl(space.namespace, "get", "job", "plain-ends2", "-o", path) == "True",
            "the job is complete",
            150,
        )
        wanted = ["rank 0 group 0 total 3", "rank 1 group 1 total 3"]
        assert lines_of(space.namespace, "app=plain-ends2") == wanted
    finally:
        kubectl(space.namespace, "delete", "-f", "-", "--wait=false", given=text)


@pytest.mark.cluster
def test_failed_training_ends_a_plain_job_immediately(space):
    plan = make_pod_plan(job_id="plain-bad22", nodes=1, image=space.image, **SIZE)
    text = render_manifests(
        make_plain_job(plan, script="raise SystemExit(3)", rendezvous=Rendezvous())
    )
    kubectl(space.namespace, "apply", "-f", "-", given=text)
    try:
        path = "jsonpath={.status.conditions[?(@.type=='Failed')].reason}"
        wait_for(
            lambda: (
                kubectl(space.namespace, "get", "job", "plain-bad22", "-o", path)
                == "PodFailurePolicy"
            ),
            "the job has failed",
            90,
        )
        pods = kubectl(space.namespace, "get", "pods", "-l", "app=plain-bad22", "-o", "name")
        assert len(pods.split()) == 1
    finally:
        kubectl(space.namespace, "delete", "-f", "-", "--wait=false", given=text)


def test_plain_jobs_match_the_golden_files():
    plan = make_pod_plan(nodes=2, procs=2, timeout_s=60.0, queue="q", **SIZE)
    documents = make_plain_job(plan, script="print(1)\n", rendezvous=Rendezvous())
    check_golden("plain/script.yaml", documents)
    plan = make_pod_plan(
        work=Script(path="/app/train.py"), in_image=True, volumes=(read_volume("new:1Gi:/out"),)
    )
    documents = make_plain_job(plan, script=None, rendezvous=Rendezvous())
    check_golden("plain/in-image.yaml", documents)
    assert "windlass" not in render_manifests(documents).lower()


def test_golden_folder_has_no_other_files():
    folder = Path(__file__).parents[2] / "golden"
    found = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.yaml"))
    assert [name for name in found if name.startswith(("plain/", "statefulset/"))] == [
        "plain/in-image.yaml",
        "plain/script.yaml",
        "statefulset/default.yaml",
        "statefulset/own.yaml",
        "statefulset/train_framework.yaml",
    ]

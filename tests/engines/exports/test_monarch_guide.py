"""Monarch's guide to DDP on Kubernetes, command by command, with the manifest and script of the examples."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from cluster_space import Space
from waits import wait_for

from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.errors import EngineMissing
from windlass.kube.client.access import check_needs
from windlass.kube.objects.kinds import PODS

EXAMPLES = Path(__file__).parents[3] / "examples"
MANIFEST = EXAMPLES / "manifests/ddp_mesh.yaml"
IMAGE = "localhost/monarch:testbed"
WORKERS = "app.kubernetes.io/name=monarch-worker"
EXPORT = (
    *("export", "kubernetes_ddp.py", "-e", "monarchmesh", "--plain", "--name", "ddpmesh"),
    *("--nodes", "2", "--gpus", "4", "--image", "my/monarch:0.7.0"),
)
PER_HOST = 1  # ranks per host. The guide has 4, but each takes seconds of CPU time to import torch.
EXPECTED = (
    "Initializing torch distributed",
    "Finished initializing torch distributed",
    "Running basic DDP example",
    "local_rank={local_rank}",
    "Finished running basic DDP example",
)


def call(*command: str) -> str:
    done = subprocess.run(
        command,
        cwd=EXAMPLES,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def test_manifest_matches_the_export():
    exported = call(sys.executable, "-m", "windlass.cli.main", *EXPORT)
    assert exported == MANIFEST.read_text(encoding="utf-8")


def edit(manifest: str, *, namespace: str) -> str:
    """Change namespace and image, and request little CPU, because other tests share the machines."""
    documents = list(yaml.safe_load_all(manifest.replace("monarch-tests", namespace)))
    for document in documents:
        spec = document.get("spec", {})
        for container in spec.get("podTemplate", {"spec": spec})["spec"].get("containers", ()):
            container["image"] = IMAGE
            container.setdefault("resources", {}).setdefault("requests", {})["cpu"] = "300m"
    return yaml.safe_dump_all(documents)


@pytest.fixture
def manifest(space: Space, tmp_path: Path) -> Iterator[str]:
    """Yield the guide's manifest, edited for this cluster."""
    try:
        check_needs(space.api, MONARCHMESH.needs)
    except EngineMissing as missing:
        pytest.skip(missing.message)
    if shutil.which("kubectl") is None:
        pytest.skip("needs kubectl on the PATH")
    path = tmp_path / "ddp_mesh.yaml"
    path.write_text(edit(MANIFEST.read_text(), namespace=space.namespace))
    yield str(path)
    call("kubectl", "delete", "-f", str(path), "--ignore-not-found", "--wait=false")


def is_running(space: Space, labels: str, number: int) -> bool:
    pods = space.api.list(PODS, labels=labels)
    return [pod["status"].get("phase") for pod in pods] == ["Running"] * number


def read_output(*where: str) -> dict[int, list[str]]:
    logs = call("kubectl", "logs", *where, "-l", WORKERS, "--tail=-1")
    return {
        rank: re.findall(rf"^self\.rank={rank} (.*)$", logs, re.MULTILINE)
        for rank in range(2 * PER_HOST)
    }


@pytest.mark.cluster
@pytest.mark.timeout(900)  # every rank imports torch while other tests run
def test_the_guide_from_apply_to_cleanup(space, manifest):
    where = ("-n", space.namespace)
    call("kubectl", "apply", "-f", manifest)
    wait_for(lambda: is_running(space, WORKERS, 2), "both workers run", 240)
    wait_for(lambda: is_running(space, "app=ddp-controller", 1), "the controller runs", 240)
    names = call("kubectl", "get", "pods", *where, "-l", WORKERS, "-o", "name").split()
    assert names == ["pod/ddpmesh-0", "pod/ddpmesh-1"]
    assert "ddp-controller" in call("kubectl", "get", "pods", *where, "ddp-controller")

    there = f"{space.namespace}/ddp-controller:/tmp/kubernetes_ddp.py"
    call("kubectl", "cp", "kubernetes_ddp.py", there)
    script = ("python", "/tmp/kubernetes_ddp.py", "--num_hosts", "2")
    shown = call(
        *("kubectl", "exec", "-it", "ddp-controller", *where, "--"),
        *(*script, "--gpus_per_host", str(PER_HOST), "--mesh_name", "ddpmesh"),
        *("--namespace", space.namespace),
    )
    assert f"{2 * PER_HOST} ranks, weights agree" in shown

    expected = {
        rank: [text.format(local_rank=rank % PER_HOST) for text in EXPECTED]
        for rank in range(2 * PER_HOST)
    }
    # Monarch's workers forward the output of their processes with a short delay
    wait_for(
        lambda: read_output(*where) == expected, "every rank's lines are in the pods' logs", 60
    )

    call("kubectl", "delete", "-f", manifest, "--wait=false")
    wait_for(lambda: space.api.list(PODS, labels=WORKERS) == [], "the workers are gone")

"""Output of `windlass export`, applied with kubectl: the job succeeds, and keys need an option."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from kube.users import make_kubeconfig
from strict_cluster.conftest import Become
from strict_cluster.ground import Ground, wait_for

from windlass.engines.exports.plain_export import _PLAIN
from windlass.kube.objects.kinds import JOBS

pytestmark = pytest.mark.cluster

# Client-side apply copies each object into an annotation, which can hold 256 KiB.
WAYS = {"client-side": (), "server-side": ("--server-side",)}
TRAIN = "from windlass.train import get_context\nget_context()\n"
ENGINES = ("kubernetes", "monarchmesh", "pytorchjob", "raycluster", "trainjob")
EXPORTS = {
    **{engine: ("-e", engine, "--with-keys") for engine in ENGINES},
    **{f"plain {engine}": ("-e", engine, "--plain") for engine in _PLAIN},
    "statefulset": ("-e", "statefulset"),
}


@pytest.fixture
def kubectl() -> str:
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("needs kubectl on the PATH")
    return found


@pytest.fixture
def admin(plain_ground: Ground, become: Become) -> Ground:
    """Use the plain namespace as its admin."""
    become(plain_ground, None)
    return plain_ground


def call(*words: str, given: str = "") -> str:
    ran = subprocess.run(words, input=given, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def windlass(*words: str) -> str:
    return call(sys.executable, "-m", "windlass.cli.main", *words)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", EXPORTS)
def test_every_export_can_be_applied(admin: Ground, kubectl: str, way: str, name: str) -> None:
    """The export includes the training library, which makes it as large as possible."""
    Path("lesson.py").write_text(TRAIN)
    space = admin.api.namespace
    text = windlass("export", "lesson.py", "--nodes", "2", "-n", space, *EXPORTS[name])
    documents = list(yaml.safe_load_all(text))
    kinds = {document["kind"] for document in documents}
    served = {
        line.split()[-1] for line in call(kubectl, "api-resources", "--no-headers").splitlines()
    }
    if missing := kinds - served:
        pytest.skip(f"the cluster does not serve {missing}")
    try:
        applied = call(kubectl, "apply", *WAYS[way], "-n", space, "-f", "-", given=text)
        assert len(applied.splitlines()) == len(documents)
    finally:
        call(kubectl, "delete", "-n", space, "-f", "-", "--wait=false", given=text)


def test_role_of_the_statefulset_export_is_sufficient(
    plain_ground: Ground, kubectl: str, become: Become, tmp_path: Path
) -> None:
    become(plain_ground, None)
    rules = yaml.safe_load(windlass("doctor", "--role", "-e", "statefulset"))["rules"]
    user = ("--kubeconfig", str(make_kubeconfig(plain_ground.api, rules, tmp_path)))
    Path("lesson.py").write_text("print(1)\n")
    text = windlass("export", "lesson.py", "-e", "statefulset", "-n", plain_ground.api.namespace)
    here = ("-n", plain_ground.api.namespace)
    wait_for(
        lambda: "yes" in call_any(kubectl, *user, "auth", "can-i", "patch", "sts", *here), "rights"
    )
    try:
        call(kubectl, *user, "apply", *here, "-f", "-", given=text)
        call(kubectl, *user, "scale", *here, "-f", "-", "--replicas=0", given=_last(text))
    finally:
        call(kubectl, *user, "delete", *here, "-f", "-", "--wait=false", given=text)


def _last(text: str) -> str:
    return text.rpartition("---\n")[2]


def call_any(*words: str) -> str:
    return subprocess.run(words, capture_output=True, text=True, timeout=90).stdout


@pytest.mark.parametrize("way", WAYS)
def test_export_applied_with_kubectl_runs(admin: Ground, kubectl: str, way: str) -> None:
    text = windlass("export", "work.py::hello", "--nodes", "2", "--with-keys")
    call(kubectl, "apply", *WAYS[way], "-f", "-", given=text)
    job_id = next(d for d in yaml.safe_load_all(text) if d["kind"] == "Job")["metadata"]["name"]
    ref = f"kubernetes://{admin.api.namespace}/{job_id}"

    def has_succeeded() -> bool:
        return json.loads(windlass("status", ref, "--json"))["phase"] == "succeeded"

    wait_for(has_succeeded, f"{ref} has succeeded")
    results = json.loads(windlass("result", ref, "--json"))["results"]
    assert [(one["rank"], one["value"]) for one in results] == [(0, "hello"), (1, "hello")]
    call(kubectl, "delete", "-n", admin.api.namespace, "-f", "-", "--wait=false", given=text)
    admin.wait_for_nothing(job_id)
    assert admin.api.list(JOBS) == []


def test_export_has_keys_only_on_request(admin: Ground) -> None:
    text = windlass("export", "work.py::hello")
    contents = [
        base64.b64decode(value)
        for document in yaml.safe_load_all(text)
        if document["kind"] == "Secret"
        for value in document["data"].values()
    ]
    assert contents, "the plan and the agent are there to be read"
    assert "PRIVATE KEY" not in text
    assert not any(b"PRIVATE KEY-----" in content for content in contents)
    with_keys = windlass("export", "work.py::hello", "--with-keys")
    secret = next(d for d in yaml.safe_load_all(with_keys) if d["kind"] == "Secret")
    assert b"PRIVATE KEY-----" in base64.b64decode(secret["data"]["client.key"])

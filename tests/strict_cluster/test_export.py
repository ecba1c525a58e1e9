"""What `windlass export` prints, given to kubectl: it runs to its end, and holds no key unless asked."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import sys

import pytest
import yaml
from strict_cluster.conftest import Become
from strict_cluster.ground import Ground, wait_for

from windlass.kube.kinds import JOBS

pytestmark = pytest.mark.cluster

# kubectl keeps what it applied in an annotation, and all annotations of an object may have 256 KiB.
MOST_ANNOTATED = 256 << 10


@pytest.fixture
def kubectl() -> str:
    found = shutil.which("kubectl")
    if found is None:
        pytest.skip("needs kubectl on the PATH")
    return found


@pytest.fixture
def admin(plain_ground: Ground, become: Become) -> Ground:
    """The plain namespace, as somebody who may apply anything there."""
    become(plain_ground, None)
    return plain_ground


def call(*words: str, given: str = "") -> str:
    ran = subprocess.run(words, input=given, capture_output=True, text=True, timeout=90)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def windlass(*words: str) -> str:
    return call(sys.executable, "-m", "windlass.cli.main", *words)


@pytest.mark.parametrize("way", ["server-side", "client-side"])
def test_an_export_applied_by_kubectl_runs(admin: Ground, kubectl: str, way: str) -> None:
    text = windlass("export", "work.py::hello", "--nodes", "2", "--with-keys")
    secret = next(d for d in yaml.safe_load_all(text) if d["kind"] == "Secret")
    size = len(json.dumps(secret))
    if way == "client-side" and size > MOST_ANNOTATED:
        pytest.skip(f"the Secret has {size} bytes: too many for a client-side kubectl apply")
    flags = ["--server-side"] if way == "server-side" else []
    call(kubectl, "apply", *flags, "-f", "-", given=text)
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


def test_an_export_holds_no_key_unless_asked(admin: Ground) -> None:
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

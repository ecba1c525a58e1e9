"""Attack: another user has made a compute with the name that yours would have.

A client sends its compute secrets and unpickles its answers. So a bare name means the client's own compute.
Every command and function refuses another user's before it sends anything, unless it is named as
`owner/name`.
"""

from __future__ import annotations

import base64
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli.process import WINDLASS
from kube.api_server import write_kubeconfig
from kube.fake_cluster import FakeCluster, fake_cluster, make_fake_job
from kube.plans import make_pod_plan

import windlass as wl
from windlass.client.compute.nodes.compute_owners import is_meant, is_own, name_for, name_user
from windlass.engines.cluster.cluster_engine import ClusterEngine
from windlass.engines.cluster.job_secret import make_certificates
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.protocol import JobRef
from windlass.errors import JobNotFound, KeysReplaced, SpecError
from windlass.plan.plan import Plan, render_plan
from windlass.settings import read_settings
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder

JOB = "shared-ab2cd"
REF = JobRef("kubernetes", JOB, "space")
SCRIPT = """
import windlass as wl

@wl.compute(name="shared", image="any:1", secrets=[wl.Secret(provider="hf")])
def train():
    return 1
"""


def make_squatter(user: str, identity: str) -> Plan:
    return make_pod_plan(JOB, name="shared", work=Calls(user=user, identity=identity))


def put(cluster: FakeCluster, plan: Plan) -> dict[str, bytes]:
    """Create a compute in the cluster as its owner's client would, and return its keys."""
    job = make_fake_job(plan.job_id)
    job["metadata"]["annotations"] = {"windlass.dev/work": "compute"}
    files = make_certificates(plan.job_id, now_s=time.time(), valid_s=3600.0)
    data = {"plan.json": render_plan(plan).encode(), **files}
    secret = {
        "metadata": {"name": plan.job_id, "uid": "s"},
        "data": {name: base64.b64encode(value).decode() for name, value in data.items()},
    }
    cluster.objects = {"jobs": [job], "secrets": [secret]}
    return files


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCluster]:
    """Yield a cluster where this user is "me", in which the stranger's compute exists."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "windlass.toml").touch()
    (tmp_path / "project" / "script.py").write_text(SCRIPT)
    monkeypatch.chdir(tmp_path / "project")
    with fake_cluster() as found:
        found.user = "me"
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=found.url)))
        monkeypatch.setenv("WINDLASS_ENGINE", "kubernetes")
        monkeypatch.setenv("HF_TOKEN", "what the squatter is after")
        put(found, make_squatter("stranger", "stranger@example.org"))
        yield found


def make_engine() -> ClusterEngine:
    return ClusterEngine(KUBERNETES, read_settings(flags={}, environ=os.environ, start=Path.cwd()))


def check_untouched(cluster: FakeCluster) -> None:
    """Check that nothing was sent, created or deleted."""
    changes = [seen for seen in cluster.seen if seen.method != "GET" and "reviews" not in seen.path]
    assert changes == []
    assert not [seen for seen in cluster.seen if seen.path.endswith(("/portforward", "/log"))]


def use_compute(name: str) -> None:
    token = wl.Secret(provider="hf")
    wl.Compute(name=name, image="any:1", secrets=[token], launch_timeout=20).up()


def send_to_compute(name: str) -> None:
    wl.fn(print).to(wl.Compute(name=name, image="any:1"))


def delete_compute(name: str) -> None:
    wl.Compute(name=name).teardown()


def read_call(name: str) -> None:
    wl.attach(f"{name}.abcdefghjk").results()


@pytest.mark.parametrize("way", [use_compute, send_to_compute, delete_compute, read_call])
def test_compute_of_another_owner_is_refused(cluster, way):
    with pytest.raises(SpecError, match="shared belongs to stranger") as refused:
        way("shared")
    assert refused.value.hint
    if way is use_compute:
        assert "'stranger/shared' if you trust stranger" in refused.value.hint
        assert "use another name to create your own" in refused.value.hint
    check_untouched(cluster)


@pytest.mark.parametrize(
    "words",
    [
        ("compute", "rm", "shared"),
        ("compute", "scale", "shared", "2"),
        ("compute", "calls", "shared"),
        ("deploy", "script.py"),
    ],
)
def test_compute_of_another_owner_is_refused_in_the_shell(cluster, words):
    done = subprocess.run([*WINDLASS, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2, done.stderr
    assert "shared belongs to stranger" in done.stderr
    assert "stranger/shared" in done.stderr
    check_untouched(cluster)


def test_rm_all_keeps_computes_of_others(cluster):
    words = ("compute", "rm", "--all", "--yes")
    done = subprocess.run([*WINDLASS, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "stranger/shared is not yours and is kept" in done.stderr
    check_untouched(cluster)


def test_ls_shows_owner_and_name(cluster):
    words = ("compute", "ls", "--json")
    done = subprocess.run([*WINDLASS, *words], capture_output=True, text=True, timeout=120)
    (one,) = [one for one in json.loads(done.stdout) if one["job_id"] == JOB]
    assert (one["owner"], one["name"]) == ("stranger", "shared")


def test_unknown_owner_raises_with_a_hint(cluster):
    with pytest.raises(JobNotFound, match="eve has no compute shared here") as error:
        wl.Compute(name="eve/shared", image="any:1").up()
    assert error.value.hint == "there is stranger/shared"
    check_untouched(cluster)


@pytest.mark.parametrize(
    ("user", "identity", "is_mine"),
    [
        ("stranger", "stranger@example.org", False),
        ("stranger", "me", False),  # shares an account of the cluster
        (None, "stranger@example.org", False),  # has the same user name on another machine
        (None, "", False),
        (None, "me", True),
    ],
)
def test_owner_of_a_compute(cluster, user, identity, is_mine):
    """The parameter `user` is None for the user of this process."""
    plan = make_squatter(user or name_user(), identity)
    put(cluster, plan)
    engine = make_engine()
    assert is_own(engine, REF, plan) is is_mine
    assert is_meant(engine, REF, plan, "") is is_mine
    for owner in filter(None, (user, identity)):
        assert is_meant(engine, REF, plan, owner)
    shows_owner = not is_mine and bool(user or identity)
    assert ("/" in name_for(engine, REF, plan)) is shows_owner


def test_own_compute_is_recognized_by_its_keys(cluster, home):
    """The local folder keeps the compute's CA.

    The client refuses a compute with another CA, even if all else matches.
    """
    plan = make_squatter(name_user(), "me")
    files = put(cluster, plan)
    folder = JobFolder(home / "kubernetes" / JOB)
    folder.path.mkdir(parents=True)
    (folder.path / "ca.crt").write_bytes(files["ca.crt"])
    assert make_engine().plan(REF).work == plan.work
    put(cluster, plan)  # the same plan with another user's keys
    with pytest.raises(KeysReplaced, match="differ from those that it was submitted with") as error:
        make_engine().dial(REF)
    assert f"kubectl describe secret {JOB}" in error.value.hint
    with pytest.raises(KeysReplaced):
        use_compute("shared")
    check_untouched(cluster)

"""Attack in a real cluster: a newer pod with the job's labels, index 0, and its own certificate.

One variant has only the labels. The other also forges the job's Job as its controller. The status is right,
results arrive, and clients never connect to a pod with only the labels.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.cluster_ground import wait_until_up, working_in
from cluster_objects import make_foreign_pod
from cluster_space import Space
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.cluster.job_secret import make_certificates
from windlass.engines.dialects.kubernetes import LABEL_INDEX
from windlass.kube.objects.kinds import JOBS, PODS

pytestmark = pytest.mark.cluster

FALSE = """
import os, socket, ssl
folder = "/tmp/"
for name in ("crt", "key"):
    with open(folder + name, "w") as file:
        file.write(os.environ[name])
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(folder + "crt", folder + "key")
listener = socket.create_server(("", 29400))
print("ready", flush=True)
while True:
    visitor, address = listener.accept()
    if address[0] != "127.0.0.1":
        continue  # connections from the job's own nodes, because its Service also selects this pod
    print("dialed", flush=True)
    try:
        visitor.settimeout(20)
        context.wrap_socket(visitor, server_side=True)
    except OSError:
        pass
"""


@pytest.fixture
def ground(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    with working_in(space, tmp_path / "project", monkeypatch) as found:
        yield found


def put_false_lead(ground: Space, job_id: str, *, is_forged: bool) -> str:
    """Create a newer pod that looks like the job's lead, and return its name."""
    name = f"{job_id}-0-false"
    keys = make_certificates(job_id, now_s=time.time(), valid_s=3600.0)
    env = {"crt": keys["node.crt"].decode(), "key": keys["node.key"].decode()}
    labels = {names.LABEL_JOB: job_id, LABEL_INDEX: "0"}
    owner = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": job_id,
        "uid": ground.api.get(JOBS, job_id)["metadata"]["uid"],
        "controller": True,
    }
    owners = [owner] if is_forged else []
    ground.api.create(
        PODS,
        make_foreign_pod(name, ground.image, FALSE, env=env, labels=labels, ownerReferences=owners),
    )
    wait_for(lambda: is_listening(ground, name), f"{name} listens, or is gone")
    return name


def is_listening(ground: Space, name: str) -> bool:
    pods = {pod["metadata"]["name"]: pod for pod in ground.api.list(PODS)}
    if name not in pods:  # the Job controller may delete a pod that it did not create
        return True
    is_running = pods[name].get("status", {}).get("phase") == "Running"
    return is_running and b"ready" in ground.api.read_log(name)


@pytest.mark.parametrize("is_forged", [False, True])
def test_newer_pod_with_the_jobs_labels_is_ignored(
    ground: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_forged: bool
) -> None:
    job = wl.submit("work.py::stay")
    wait_until_up(job)
    name = put_false_lead(ground, job.id, is_forged=is_forged)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "another-home"))
    visitor = wl.attach(str(job.ref))
    wait_for(lambda: visitor.status().phase.value == "running", "the job is running")
    assert [line.text for line in visitor.logs()] == ["up"]
    if not is_forged:
        assert b"dialed" not in ground.api.read_log(name)
    visitor.cancel(now=True)
    assert visitor.wait(60).phase.value == "cancelled"


def test_calls_reach_their_own_lead(ground: Space) -> None:
    compute = wl.Compute(name="warm", engine="kubernetes", inactivity_ttl="5m").up()
    ref = compute.nodes().ref
    assert ref is not None
    name = put_false_lead(ground, ref.job_id, is_forged=False)
    remote = wl.fn(sum).to(wl.Compute(name="warm", engine="kubernetes"))
    assert remote([1, 2]) in (3, [3])
    assert b"dialed" not in ground.api.read_log(name)
    compute.teardown()

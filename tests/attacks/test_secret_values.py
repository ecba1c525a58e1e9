"""Attack: searching for a secret value in everything that others may read of a job.

Only the job's own Secret may contain it. Searched are exports, labels, annotations, events, variables, last
words of pods, logs and other objects. Command arguments may be secrets too, so only the program's name is
shown.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from attacks.cluster_ground import working_in
from cluster_space import Space
from kube.plans import FILES, make_pod_plan
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.cli.verbs.export import render_manifests
from windlass.engines.cluster.submit import render_documents
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.objects.kinds import EVENTS, JOBS, NETWORK_POLICIES, PODS, SECRETS, SERVICES
from windlass.spec.work import Command, Function, Module, Script

VALUE = "hunter2-b2c7f1"
WORKS = {
    "script": (Script(path="train.py", args=("--token", VALUE)), "train.py"),
    "module": (Module(name="train", args=(f"--token={VALUE}",)), "-m train"),
    "command": (Command(argv=("curl", "-H", f"Authorization: {VALUE}")), "curl"),
    "shell": (Command(argv=("sh", "-c", f"TOKEN={VALUE} python train.py")), "sh"),
    "function": (Function(name="train", file="train.py"), "train.py::train"),
}


@pytest.mark.parametrize("kind", WORKS)
def test_arguments_are_only_in_the_secret(kind):
    work, shown = WORKS[kind]
    plan = make_pod_plan(work=work, nodes=2)
    files = FILES.add_own({"env.TOKEN": VALUE.encode()})
    documents = render_documents(KUBERNETES, plan, files, submit="s")
    objects = [one for one in documents if one["kind"] != "Secret"]
    text = render_manifests(objects)
    assert VALUE not in text
    assert base64.b64encode(VALUE.encode()).decode() not in text
    (job,) = [one for one in objects if one["kind"] == "Job"]
    for one in (job, job["spec"]["template"]):
        assert one["metadata"]["annotations"][names.ANNOTATION_WORK] == shown


@pytest.fixture
def ground(space: Space, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    with working_in(space, tmp_path / "project", monkeypatch) as found:
        yield found


def read_all_but_secrets(ground: Space) -> str:
    """Return all objects of the namespace except Secrets, and the logs of the pods."""
    kinds = (JOBS, PODS, SERVICES, NETWORK_POLICIES, EVENTS)
    objects = [json.dumps(ground.api.list(kind)) for kind in kinds]
    pods = [pod["metadata"]["name"] for pod in ground.api.list(PODS, labels=names.LABEL_JOB)]
    return "\n".join([*objects, *(ground.api.read_log(pod).decode() for pod in pods)])


@pytest.mark.cluster
def test_secret_values_in_a_cluster(ground, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", VALUE)
    compute = wl.Compute(name="keeper", inactivity_ttl="5m", secrets=[wl.Secret("hf")]).up()
    ref = compute.nodes().ref
    job = wl.submit(["sh", "-c", f"test {VALUE} && sleep 600"])
    wait_for(lambda: job.status().phase.value == "running", "it runs")
    seen = read_all_but_secrets(ground)
    assert job.id in seen, "the job was running"
    assert ref.job_id in seen
    encoded = base64.b64encode(VALUE.encode()).decode()
    assert VALUE not in seen
    assert encoded not in seen
    assert encoded in json.dumps(ground.api.get(SECRETS, ref.job_id)), (
        "the job's own Secret has the value"
    )
    job.cancel(now=True)
    job.wait(60)
    compute.teardown()

"""PyTorchJobs on a cluster with training-operator: their end, and jobs of other tools."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import make_shared
from cluster_space import Space
from kube.plans import make_pod_plan
from operator_jobs import ALL_REDUCE, make_work, read_exit_code, use_dialect
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.dialects.pytorchjob import LABEL_JOB_NAME, PYTORCHJOB, read_end
from windlass.engines.exports.torchrun_exports import make_plain_pytorchjob
from windlass.errors import WindlassError
from windlass.kube.client.api import Api, connect
from windlass.kube.objects.kinds import CONFIG_MAPS, NAMESPACES, PODS, PYTORCH_JOBS
from windlass.kube.objects.torchrun_pods import Rendezvous
from windlass.wire.status import Phase

pytestmark = pytest.mark.cluster
GUIDE_IMAGE = "registry.cern.ch/itwinai/dist-ml/itwinai-slim:0.0.7"


@pytest.fixture
def api(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    with use_dialect(PYTORCHJOB, space, monkeypatch, tmp_path):
        yield space.api


@pytest.fixture
def shared(api: Api, space: Space, tmp_path: Any) -> Any:
    return make_shared(space.files, tmp_path)


def pods_of(api: Api, name: str) -> dict[str, dict[str, Any]]:
    pods = api.list(PODS, labels=f"{LABEL_JOB_NAME}={name}")
    return {pod["metadata"]["name"]: pod for pod in pods}


def exit_codes(api: Api, name: str) -> list[int | None]:
    return [read_exit_code(pod) for pod in pods_of(api, name).values()]


def is_complete(api: Api, name: str) -> bool | None:
    end = read_end(api.get(PYTORCH_JOBS, name))
    return None if end is None else end.is_complete


@pytest.mark.parametrize("nodes", [2, "1:2"])
def test_user_error_fails_the_pytorchjob(api, shared, nodes):
    """Covers an elastic policy too, which normally completes the job as soon as one pod completes."""
    job = wl.submit(make_work(), (shared.path, True), nodes=nodes)
    wait_for(lambda: any(name.startswith("up-0-1") for name in shared.names()), "both ranks run")
    before = pods_of(api, job.id)
    shared.touch("go")
    assert job.wait(90).phase is Phase.FAILED
    with pytest.raises(ValueError, match="the user's"):
        job.results()
    wait_for(lambda: is_complete(api, job.id) is False, "the PyTorchJob is Failed")
    wait_for(
        lambda: exit_codes(api, job.id) == [names.EXIT_FAILED_WORK] * 2, "its pods have failed"
    )
    after = pods_of(api, job.id)
    assert {n: p["metadata"]["uid"] for n, p in after.items()} == {
        n: p["metadata"]["uid"] for n, p in before.items()
    }
    assert not any(pod["spec"].get("initContainers") for pod in after.values()), "no pod waits"


def test_message_of_the_webhook_is_shown(api):
    patch = {"spec": {"containers": [{"name": "windlass", "image": None}]}}
    with pytest.raises(WindlassError, match=r"image: Required value"):
        wl.submit("true", patch=json.dumps(patch))
    assert wl.jobs() == []


# -- jobs of other tools ---------------------------------------------------------------------------


@pytest.fixture
def plain(api: Api, space: Space, monkeypatch: pytest.MonkeyPatch) -> Iterator[Api]:
    """Yield a namespace without Pod Security, because the operator's init container needs more rights."""
    name = f"{space.namespace}-plain"
    space.api.create(NAMESPACES, {"metadata": {"name": name}})
    monkeypatch.setenv("WINDLASS_NAMESPACE", name)
    yield connect(namespace=name)
    space.api.delete(NAMESPACES, name)


def make_guide_job() -> dict[str, Any]:
    """Return the itwinai guide's manifest for CPUs. Its main.py is in a ConfigMap instead of the image."""
    container = {
        "name": "pytorch",
        "image": GUIDE_IMAGE,
        "imagePullPolicy": "IfNotPresent",
        "command": ["torchrun", "/app/main.py"],
        "volumeMounts": [{"name": "app", "mountPath": "/app"}],
    }
    volumes = [{"name": "app", "configMap": {"name": "app"}}]
    template = {"spec": {"containers": [container], "volumes": volumes}}
    replica = {"replicas": 1, "restartPolicy": "OnFailure", "template": template}
    return {
        "metadata": {"name": "torchrun-cpu"},
        "spec": {
            "nprocPerNode": "2",
            "pytorchReplicaSpecs": {"Master": replica, "Worker": replica},
        },
    }


def test_guide_manifest_and_plain_export_run_and_can_be_read(plain, space):
    plan = make_pod_plan(job_id="plain-ab2cd", nodes=2, procs=2, image=space.image)
    code, exported = make_plain_pytorchjob(plan, script=ALL_REDUCE, rendezvous=Rendezvous())
    plain.create(CONFIG_MAPS, {"metadata": {"name": "app"}, "data": {"main.py": ALL_REDUCE}})
    plain.create(CONFIG_MAPS, code)
    jobs = {}
    for body in (make_guide_job(), exported):
        plain.create(PYTORCH_JOBS, body)
        jobs[body["metadata"]["name"]] = wl.attach(body["metadata"]["name"])
    for name, job in jobs.items():
        assert job.wait(300).phase is Phase.SUCCEEDED
        lines = sorted(line.text for line in job.logs(grep="^rank"))
        assert lines == [f"rank {rank} of 4: 4" for rank in range(4)]
        assert [node.name for node in job.status().nodes] == [
            f"{name}-master-0",
            f"{name}-worker-0",
        ]
        with pytest.raises(WindlassError, match="was not created by Windlass"):
            job.results()
        job.cancel()
    kept = {body["metadata"]["name"] for body in plain.list(PYTORCH_JOBS)}
    assert kept == set(jobs), "what has ended is its owner's to remove"
    for name in jobs:
        plain.delete(PYTORCH_JOBS, name)
    wait_for(lambda: plain.list(PYTORCH_JOBS) == [], "what was deleted is gone")

"""MonarchMeshes on a cluster with Monarch's operator: how a job ends, and meshes of other tools."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster_shared import make_shared
from cluster_space import Space
from operator_jobs import use_dialect
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.engines.dialects.monarchmesh import MONARCHMESH, make_name
from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import MONARCH_MESHES, PODS, SECRETS
from windlass.wire.status import Phase

pytestmark = pytest.mark.cluster
SAYS = 'import time; print("here", flush=True); time.sleep(600)'
STRICT = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "runAsUser": 1000,
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def api(space: Space, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Api]:
    with use_dialect(MONARCHMESH, space, monkeypatch, tmp_path):
        yield space.api


@pytest.fixture
def shared(api: Api, space: Space, tmp_path: Any) -> Any:
    return make_shared(space.files, tmp_path)


def make_work() -> Any:
    """Return a local function, which is pickled by value because the pods do not have the tests."""

    def wait_for_go(folder: str) -> str:
        import os
        import time
        from pathlib import Path

        attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
        Path(folder, f"up-{attempt}-{rank}").touch()
        while not Path(folder, "go").exists():
            time.sleep(0.05)
        return attempt

    return wait_for_go


def uids_of(api: Api, name: str) -> dict[str, str]:
    pods = api.list(PODS, labels=f"{names.LABEL_MESH}={name}")
    return {pod["metadata"]["name"]: pod["metadata"]["uid"] for pod in pods}


def test_lost_pod_keeps_its_name_and_the_end_leaves_nothing(api, shared):
    job = wl.submit(make_work(), (shared.path,), nodes=2)
    name = make_name(job.id)
    wait_for(lambda: {"up-0-0", "up-0-1"} <= set(shared.names()), "both ranks run", 90)
    before = uids_of(api, name)
    assert set(before) == {f"{name}-0", f"{name}-1"}
    api.delete(PODS, f"{name}-1")
    wait_for(lambda: {"up-1-0", "up-1-1"} <= set(shared.names()), "both run again", 90)
    after = uids_of(api, name)
    assert after[f"{name}-0"] == before[f"{name}-0"]
    assert after[f"{name}-1"] != before[f"{name}-1"]
    shared.touch("go")
    assert job.wait(90).phase is Phase.SUCCEEDED
    assert job.results() == ["1", "1"]
    label = f"windlass.dev/job={job.id}"
    wait_for(lambda: api.list(MONARCH_MESHES, labels=label) == [], "its MonarchMesh is gone")
    wait_for(
        lambda: api.list(PODS, labels=label) == api.list(SECRETS, labels=label) == [],
        "what it owned is gone, too",
        60,
    )
    assert job.results() == ["1", "1"], "this machine keeps the results"


def make_foreign_mesh(name: str, image: str) -> dict[str, Any]:
    container = {
        "name": "worker",
        "image": image,
        "command": ["python3", "-c", SAYS],
        "securityContext": STRICT,
    }
    template = {"spec": {"terminationGracePeriodSeconds": 1, "containers": [container]}}
    return {"metadata": {"name": name}, "spec": {"replicas": 2, "podTemplate": template}}


def test_mesh_of_another_tool_can_be_read_by_name(api, space):
    api.create(MONARCH_MESHES, make_foreign_mesh("othersmesh", space.image))
    mesh = wl.attach("othersmesh")
    wait_for(lambda: mesh.status().phase is Phase.RUNNING, "it runs", 60)
    wait_for(lambda: [line.text for line in mesh.logs()] == ["here"] * 2, "both workers' lines", 60)
    assert [node.name for node in mesh.status().nodes] == ["othersmesh-0", "othersmesh-1"]
    assert wl.jobs() == []
    mesh.cancel()
    wait_for(lambda: api.list(MONARCH_MESHES) == [], "it is deleted")

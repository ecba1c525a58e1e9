"""A job in a Kueue queue: Kueue resumes it, we do not. Only where Kueue is installed."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest
from strict_cluster.ground import Ground, wait_for

import windlass as wl
from windlass.kube.api import Api
from windlass.kube.kinds import Kind

pytestmark = pytest.mark.cluster

GROUP = "kueue.x-k8s.io"


@pytest.fixture
def queue(plain: Ground) -> Iterator[str]:
    """A queue of this namespace that has room for two small pods."""
    version = _find_version(plain.api)
    flavors = Kind(version, "resourceflavors", "ResourceFlavor", namespaced=False)
    wholes = Kind(version, "clusterqueues", "ClusterQueue", namespaced=False)
    locals_ = Kind(version, "localqueues", "LocalQueue")
    name = f"windlass-{secrets.token_hex(4)}"
    amounts = [{"name": "cpu", "nominalQuota": "1"}, {"name": "memory", "nominalQuota": "2Gi"}]
    group = {
        "coveredResources": ["cpu", "memory"],
        "flavors": [{"name": name, "resources": amounts}],
    }
    metadata = {"metadata": {"name": name}}
    plain.api.create(flavors, {**metadata, "spec": {}})
    plain.api.create(
        wholes, {**metadata, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}}
    )
    plain.api.create(locals_, {**metadata, "spec": {"clusterQueue": name}})
    yield name
    for kind in (locals_, wholes, flavors):
        plain.api.delete(kind, name)


def _find_version(api: Api) -> str:
    groups: list[dict[str, Any]] = api.request("GET", "/apis")["groups"]
    found = next((group for group in groups if group["name"] == GROUP), None)
    if found is None:
        pytest.skip("needs Kueue in the cluster")
    return str(found["preferredVersion"]["groupVersion"])


def test_kueue_lets_it_in(plain: Ground, queue: str) -> None:
    settings = {"queue": queue, "cpus": "250m", "memory": "512Mi"}
    job = wl.submit("work.py::hello", nodes=2, **settings)
    assert job.results(timeout_s=90) == ["hello", "hello"]


def test_a_job_too_big_for_its_queue_says_so(plain: Ground, queue: str) -> None:
    job = wl.submit(["true"], queue=queue, cpus="8", memory="512Mi")

    def is_named() -> bool:
        return any(one.reason == "NotAdmitted" for one in job.status().conditions)

    wait_for(is_named, "it is named that Kueue does not admit it", 20.0)
    job.cancel()
    job.wait(30)
    plain.wait_for_nothing(job.id)

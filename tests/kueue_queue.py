"""A Kueue queue for a test: small, of one namespace, and gone afterwards."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import ObjectKind

GROUP = "kueue.x-k8s.io"


@contextmanager
def open_queue(api: Api) -> Iterator[str]:
    """The name of a queue with room for two small pods: 1 CPU and 2 GiB."""
    version = _find_version(api)
    flavors = ObjectKind(version, "resourceflavors", "ResourceFlavor", namespaced=False)
    wholes = ObjectKind(version, "clusterqueues", "ClusterQueue", namespaced=False)
    locals_ = ObjectKind(version, "localqueues", "LocalQueue")
    name = f"windlass-{secrets.token_hex(4)}"
    amounts = [{"name": "cpu", "nominalQuota": "1"}, {"name": "memory", "nominalQuota": "2Gi"}]
    group = {
        "coveredResources": ["cpu", "memory"],
        "flavors": [{"name": name, "resources": amounts}],
    }
    metadata = {"metadata": {"name": name}}
    api.create(flavors, {**metadata, "spec": {}})
    api.create(wholes, {**metadata, "spec": {"namespaceSelector": {}, "resourceGroups": [group]}})
    api.create(locals_, {**metadata, "spec": {"clusterQueue": name}})
    yield name
    for kind in (locals_, wholes, flavors):
        api.delete(kind, name)


def _find_version(api: Api) -> str:
    groups: list[dict[str, Any]] = api.request("GET", "/apis")["groups"]
    found = next((group for group in groups if group["name"] == GROUP), None)
    if found is None:
        pytest.skip("needs Kueue in the cluster")
    return str(found["preferredVersion"]["groupVersion"])

"""Objects that tests create on a real cluster: a pod outside of any job, and a Kueue queue."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest

from windlass import names
from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import ObjectKind


def make_foreign_pod(
    name: str, image: str, program: str, *, env: Mapping[str, str] | None = None, **metadata: Any
) -> dict[str, Any]:
    """Return a pod that runs `program` in Python with the given metadata.

    The pod meets the restricted Pod Security Standard.
    """
    container = {
        "name": names.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", program],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [container],
            "securityContext": security,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


GROUP = "kueue.x-k8s.io"


@contextmanager
def open_queue(api: Api) -> Iterator[str]:
    """Create a queue with room for two small pods (1 CPU and 2 GiB), and yield its name."""
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

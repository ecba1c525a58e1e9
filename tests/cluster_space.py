"""A place of its own on a cluster: a namespace with restricted Pod Security, a claim, and its file server.

`open_space` makes it and takes it away. Works on every cluster whose default storage class gives claims
that many pods may write.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cluster_files import PORT, ROOT, SERVER, Files

from windlass.kube.api import Api, connect
from windlass.kube.kinds import (
    JOBS,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    PVCS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    STATEFUL_SETS,
)
from windlass.waiting import wait_until

_CLAIM = "shared"
_SERVER = "files"
_KINDS = (JOBS, STATEFUL_SETS, PODS, SECRETS, SERVICES, NETWORK_POLICIES, PVCS)
_START_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Where the cluster tests of one process run."""

    api: Api
    files: Files
    image: str

    @property
    def namespace(self) -> str:
        return self.api.namespace

    @property
    def settings(self) -> dict[str, str]:
        """The variables with which every job of a test is in here."""
        return {
            "WINDLASS_ENGINE": "kubernetes",
            "WINDLASS_NAMESPACE": self.namespace,
            "WINDLASS_IMAGE": self.image,
            "WINDLASS_VOLUMES": f"{_CLAIM}:{ROOT}",
        }

    def find_objects(self, labels: str) -> list[str]:
        """Everything a job is made of that has these labels, as KIND/NAME."""
        return [
            f"{kind.name}/{found['metadata']['name']}"
            for kind in _KINDS
            for found in self.api.list(kind, labels=labels)
        ]


@contextmanager
def open_space(stem: str, *, image: str) -> Iterator[Space]:
    """A namespace whose name starts with `stem`, gone afterwards with all that is in it."""
    name = f"{stem}-{secrets.token_hex(4)}"
    api = connect(namespace=name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    try:
        api.create(PVCS, _make_claim())
        _wait(lambda: _has_account(api), f"{name} has its service account")
        api.create(PODS, _make_server(image))
        _wait(lambda: _is_ready(api), f"the pod {name}/{_SERVER} serves files")
        files = Files(lambda: api.forward(_SERVER, PORT))
        try:
            yield Space(api=api, files=files, image=image)
        finally:
            files.close()
    finally:
        api.delete(NAMESPACES, name)


def _make_claim() -> dict[str, Any]:
    return {
        "metadata": {"name": _CLAIM},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _make_server(image: str) -> dict[str, Any]:
    container = {
        "name": _SERVER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", SERVER],
        "volumeMounts": [{"name": _CLAIM, "mountPath": ROOT}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "metadata": {"name": _SERVER},
        "spec": {
            "containers": [container],
            "volumes": [{"name": _CLAIM, "persistentVolumeClaim": {"claimName": _CLAIM}}],
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": 1000,
                "fsGroup": 1000,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }


def _wait(is_so: Callable[[], bool], what: str) -> None:
    assert wait_until(is_so, timeout_s=_START_S, every_s=0.1), f"after {_START_S} s not: {what}"


def _has_account(api: Api) -> bool:
    """Pods are refused until a controller has made it."""
    return any(account["metadata"]["name"] == "default" for account in api.list(SERVICE_ACCOUNTS))


def _is_ready(api: Api) -> bool:
    pod = api.get(PODS, _SERVER)
    if pod.get("status", {}).get("phase") != "Running":
        return False
    return b"ready" in api.read_log(_SERVER)

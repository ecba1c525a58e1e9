"""Place for the cases on a cluster: a namespace, and a folder shared by its pods if the cluster supports it.

`open_space` creates a namespace with restricted Pod Security and deletes it afterwards. `open_files` provides
the folder in any namespace: a claim, created unless one is named, and a pod that serves its files. This needs
a default storage class that supports ReadWriteMany claims. Otherwise `NoSharedFolder` names the reason.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from cluster_files import PORT, ROOT, SERVER, Files

from windlass.kube.client.access import may
from windlass.kube.client.api import Api, connect
from windlass.kube.objects.kinds import (
    JOBS,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    PVCS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ObjectKind,
)
from windlass.kube.objects.naming import read_job_id
from windlass.waiting import wait_until

_KINDS = (PODS, SECRETS, SERVICES, NETWORK_POLICIES, PVCS)
_START_S = 240.0


class NoSharedFolder(Exception):
    """Raised with the reason if pods cannot share a folder with each other and with the cases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Place for one process's cases. If pods share no folder, `files` is None and `no_files` the reason."""

    api: Api
    image: str
    claim: str = ""
    files: Files | None = None
    no_files: str = ""
    config: str = ""  # settings file for every job
    label: str = ""  # KEY=VALUE of this run's jobs (default: all jobs in the namespace)

    @property
    def namespace(self) -> str:
        return self.api.namespace

    @property
    def settings(self) -> dict[str, str]:
        """Environment variables that place every job of a case here."""
        settings = {
            "WINDLASS_ENGINE": "kubernetes",
            "WINDLASS_NAMESPACE": self.namespace,
            "WINDLASS_IMAGE": self.image,
        }
        return settings | ({"WINDLASS_VOLUMES": f"{self.claim}:{ROOT}"} if self.files else {})

    def may(self, verb: str, resource: str) -> bool:
        """Return whether the user has a right that a case needs and jobs do not."""
        return may(self.api, verb, resource, namespace=self.namespace)

    def list_foreign(self, kind: ObjectKind) -> set[str]:
        """Return the ids of jobs of this kind in the namespace that do not belong to this run."""
        if not self.label:
            return set()
        others = self.api.list(kind, labels=self.label.replace("=", "!="))
        return {read_job_id(body) for body in others}

    def find_objects(self, labels: str, main: ObjectKind = JOBS) -> list[str]:
        """Return all objects of a job with these labels, as KIND/NAME. `main` is the kind of a job."""
        return [
            f"{kind.name}/{body['metadata']['name']}"
            for kind in (main, *_KINDS)
            for body in self.api.list(kind, labels=labels)
        ]


@contextmanager
def open_space(stem: str, *, image: str) -> Iterator[Space]:
    """Create a namespace whose name starts with `stem`, with files. Delete it afterwards."""
    with open_namespace(stem) as api, open_files(api, image=image, name="shared") as (claim, files):
        yield Space(api=api, image=image, claim=claim, files=files)


@contextmanager
def open_namespace(stem: str) -> Iterator[Api]:
    """Create a namespace in which pods can start, and delete it afterwards."""
    name = f"{stem}-{secrets.token_hex(4)}"
    api = connect(namespace=name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    try:
        _wait(lambda: has_account(api), _START_S, lambda: f"{name} has no service account")
        yield api
    finally:
        api.delete(NAMESPACES, name)


@contextmanager
def open_files(
    api: Api, *, image: str, name: str, claim: str = "", timeout_s: float = _START_S
) -> Iterator[tuple[str, Files]]:
    """Serve the files of a claim from a pod `name`. Afterwards delete both, but keep a given claim."""
    _check_rights(api, () if claim else (PVCS,))
    if not claim:
        api.create(PVCS, make_claim(name))
    try:
        mounts = {claim or name: ROOT}
        with serve_files(api, image=image, name=name, claims=mounts, timeout_s=timeout_s) as files:
            yield claim or name, files
    finally:
        if not claim:
            api.delete(PVCS, name)


@contextmanager
def serve_files(
    api: Api, *, image: str, name: str, claims: Mapping[str, str], timeout_s: float = _START_S
) -> Iterator[Files]:
    """Serve the files of claims, each at its path at or below `ROOT`, from a pod `name`."""
    api.create(PODS, _make_server(name, claims, image))
    try:
        _wait(lambda: _is_ready(api, name), timeout_s, lambda: _describe(api, name))
        files = Files(lambda: api.forward(name, PORT))
        try:
            yield files
        finally:
            files.close()
    finally:
        api.delete(PODS, name, grace_s=0)


def _check_rights(api: Api, more: tuple[ObjectKind, ...]) -> None:
    """Raise NoSharedFolder before anything is created that could not be deleted."""
    for kind in (PODS, *more):
        for verb in ("create", "delete"):
            if not may(api, verb, kind.plural, namespace=api.namespace):
                raise NoSharedFolder(f"you may not {verb} {kind.plural}")


def make_claim(name: str) -> dict[str, Any]:
    """Return a ReadWriteMany claim."""
    return {
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _make_server(name: str, claims: Mapping[str, str], image: str) -> dict[str, Any]:
    container = {
        "name": "files",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", SERVER],
        "volumeMounts": [
            {"name": f"claim-{at}", "mountPath": path} for at, path in enumerate(claims.values())
        ],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "metadata": {"name": name},
        "spec": {
            "containers": [container],
            "volumes": [
                {"name": f"claim-{at}", "persistentVolumeClaim": {"claimName": claim}}
                for at, claim in enumerate(claims)
            ],
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


def _wait(condition: Callable[[], bool], timeout_s: float, why_not: Callable[[], str]) -> None:
    if not wait_until(condition, timeout_s=timeout_s, every_s=0.1):
        raise NoSharedFolder(f"after {timeout_s:g} s: {why_not()}")


def has_account(api: Api) -> bool:
    """Return whether the default service account exists. Until then the API server refuses pods."""
    return any(account["metadata"]["name"] == "default" for account in api.list(SERVICE_ACCOUNTS))


def _is_ready(api: Api, name: str) -> bool:
    if _find_pod(api, name).get("status", {}).get("phase") != "Running":
        return False
    return b"ready" in api.read_log(name)


def _find_pod(api: Api, name: str) -> dict[str, Any]:
    """Find a pod in a list, because jobs need no right to get a single pod."""
    return next(iter(api.list(PODS, fields=f"metadata.name={name}")), {})


def _describe(api: Api, name: str) -> str:
    """Return what keeps the pod from serving files."""
    status = _find_pod(api, name).get("status", {})
    waiting = [
        state["waiting"]
        for container in status.get("containerStatuses") or ()
        if "waiting" in (state := container.get("state") or {})
    ]
    reasons = [
        *(f"{one.get('reason', '')}: {one.get('message', '')}" for one in waiting),
        *(one.get("message", "") for one in status.get("conditions") or ()),
    ]
    return next((reason for reason in reasons if reason.strip(": ")), "its pod is not running")

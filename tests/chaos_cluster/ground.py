"""Setup of these tests: a namespace, the training jobs submitted to it, and all objects in it.

Faults that any user of a cluster can cause are methods here. Those that take a machine away are in
`testbed.py`. All waits have a deadline.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from chaos_cluster import training

import windlass as wl
from windlass import names
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.client.api import Api, connect
from windlass.kube.objects.kinds import (
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    PVCS,
    SECRETS,
    SERVICE_ACCOUNTS,
    SERVICES,
    ObjectKind,
)
from windlass.waiting import wait_until

STEM = os.environ.get("CHAOS_NAMESPACE", "windlass-chaos")
CHECKPOINTS = "new:1Gi:/ckpt:RWX"
WAIT_S = 120.0
# Reports about a lost pod, machine or rank must be correct for every kind of object.
on_every_engine = pytest.mark.parametrize(
    "ground", ["kubernetes", "trainjob", "pytorchjob"], indirect=True
)

Object = dict[str, Any]


def wait_for(is_so: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    assert wait_until(is_so, timeout_s=timeout_s), f"after {timeout_s:g} s still not: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One namespace and the jobs of a test in it."""

    api: Api
    image: str
    dialect: Dialect = KUBERNETES
    folder: Path  # the training job is submitted from here
    jobs: list[wl.Job] = field(default_factory=list)

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "engine": self.dialect.name,
            "namespace": self.api.namespace,
            "image": self.image,
            "volumes": [CHECKPOINTS],
            "grace_s": 2,
        }

    @property
    def environ(self) -> dict[str, str]:
        """The settings as environment variables, for a client in another process."""
        return {
            "WINDLASS_ENGINE": self.dialect.name,
            "WINDLASS_NAMESPACE": self.api.namespace,
            "WINDLASS_IMAGE": self.image,
            "WINDLASS_VOLUMES": CHECKPOINTS,
            "WINDLASS_GRACE": "2",
        }

    @property
    def kinds(self) -> tuple[ObjectKind, ...]:
        """The kinds of a job's objects, the main object first."""
        own = (self.dialect.prerequisite.kind,) if self.dialect.prerequisite else ()
        return (self.dialect.kind, *own, PODS, SERVICES, SECRETS, NETWORK_POLICIES, PVCS)

    def train(self, kwargs: Mapping[str, Any] | None = None, **settings: Any) -> wl.Job:
        """Submit the training job, by default on two nodes."""
        asked = {"nodes": 2, **self.settings, **settings}
        job = wl.submit("training.py::train", kwargs=dict(kwargs or {}), **asked)
        self.jobs.append(job)
        return job

    # -- current objects ---------------------------------------------------------------------------

    def pods(self, job: str, node: int | None = None) -> list[Object]:
        """Return the pods of a job, oldest first."""
        pods = self.api.list(PODS, labels=f"{names.LABEL_JOB}={job}")
        chosen = [pod for pod in pods if node in (None, self.dialect.index_of(pod))]
        return sorted(chosen, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def live_pod(self, job: str, node: int) -> Object:
        """Return the only running pod of this node that is not being deleted."""
        found = [
            pod
            for pod in self.pods(job, node)
            if pod["status"].get("phase") == "Running"
            and not pod["metadata"].get("deletionTimestamp")
        ]
        assert len(found) == 1, [pod["metadata"]["name"] for pod in found]
        return found[0]

    def uids(self, job: str) -> set[str]:
        return {pod["metadata"]["uid"] for pod in self.pods(job)}

    def left(self, job: str) -> list[str]:
        """Return all objects with the job's label."""
        labels = f"{names.LABEL_JOB}={job}"
        return [
            f"{kind.plural}/{found['metadata']['name']}"
            for kind in self.kinds
            for found in self.api.list(kind, labels=labels)
        ]

    def check_object(self, job: str, *, is_complete: bool) -> None:
        """Wait until the main object of an ended job is complete or failed."""

        def has_ended() -> bool:
            end = self.dialect.read_end(self.api.get(self.dialect.kind, job))
            return end is not None and end.is_complete is is_complete

        kind = self.dialect.kind.name
        wait_for(has_ended, f"{kind} {job} is {'complete' if is_complete else 'failed'}", 60)

    def wait_for_nothing(self, job: str, timeout_s: float = 60.0) -> None:
        wait_until(lambda: not self.left(job), timeout_s=timeout_s)
        assert not self.left(job)

    # -- faults -----------------------------------------------------------------------------------

    def delete_pod(self, job: str, node: int, *, now: bool = False) -> str:
        """Delete a node's pod, as `kubectl delete pod` does, and return its name."""
        name = str(self.live_pod(job, node)["metadata"]["name"])
        assert self.api.delete(PODS, name, grace_s=0 if now else None)
        return name

    def evict_pod(self, job: str, node: int) -> Object:
        """Evict a node's pod, as `kubectl drain` does."""
        pod = self.live_pod(job, node)
        name, namespace = pod["metadata"]["name"], self.api.namespace
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
        }
        self.api.request(
            "POST", PODS.path(namespace=namespace, name=name, part="eviction"), body=body
        )
        return pod

    def clean(self) -> None:
        """Delete everything a test has left, and check that nothing remains."""
        labels = f"{names.LABEL_JOB}"
        for job in self.api.list(self.dialect.kind, labels=labels):
            self.api.delete(self.dialect.kind, job["metadata"]["name"])
        for pod in self.api.list(PODS, labels=labels):
            self.api.delete(PODS, pod["metadata"]["name"], grace_s=0)

        def left() -> list[Object]:
            return [found for kind in self.kinds for found in self.api.list(kind, labels=labels)]

        wait_for(lambda: not left(), "the namespace is empty")


@contextmanager
def open_namespace(image: str) -> Iterator[Api]:
    """Open a namespace with restricted Pod Security, which is deleted afterwards with all its objects."""
    name = f"{STEM}-{secrets.token_hex(4)}"
    api = connect(namespace=name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    try:
        wait_for(lambda: bool(api.list(SERVICE_ACCOUNTS)), f"{name} has its service account")
        yield api
    finally:
        api.delete(NAMESPACES, name)


def make_project(folder: Path) -> Path:
    """Create a project that contains only the training script."""
    folder.mkdir()
    (folder / "windlass.toml").touch()
    shutil.copy(training.__file__, folder / "training.py")
    return folder

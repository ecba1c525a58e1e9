"""Namespace in which all contestants run one after another: create, read, clear and delete it.

This module uses only the Kubernetes API, so no extra programs run during a measurement. Every wait has a
deadline.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import ClusterError, NotFound
from windlass.kube.objects.fields import name_of
from windlass.kube.objects.kinds import (
    CONFIG_MAPS,
    JOBS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    PVCS,
    PYTORCH_JOBS,
    SECRETS,
    SERVICES,
    STATEFUL_SETS,
    TRAIN_JOBS,
    TRAINING_RUNTIMES,
    ObjectKind,
)
from windlass.waiting import wait_until

LIMIT_S = 180.0
_JOB_SETS = ObjectKind("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")
# owners first, because they recreate what they own
_KINDS: tuple[ObjectKind, ...] = (
    *(TRAIN_JOBS, TRAINING_RUNTIMES, PYTORCH_JOBS, _JOB_SETS, STATEFUL_SETS, JOBS, PODS),
    *(SERVICES, NETWORK_POLICIES, SECRETS, CONFIG_MAPS, PVCS),
)
_STAMP = re.compile(r"BENCH (\{.*\})")

Object = dict[str, Any]
Stamp = dict[str, float]


class Place:
    """The namespace of an `Api` connection."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._kinds = [kind for kind in _KINDS if self.serves(kind)]

    @property
    def namespace(self) -> str:
        return self.api.namespace

    def serves(self, kind: ObjectKind) -> bool:
        """Return whether the cluster serves this kind."""
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            found = self.api.request("GET", root)
        except NotFound:
            return False
        return any(resource["name"] == kind.plural for resource in found["resources"])

    def count_nodes(self) -> int:
        """Return the number of schedulable nodes."""
        return sum(not node["spec"].get("unschedulable") for node in self.api.list(NODES))

    def pods(self) -> list[Object]:
        return self.api.list(PODS)

    # -- contents ------------------------------------------------------------------------------

    def find_objects(self) -> list[str]:
        """Return all objects except those that every namespace has."""
        return [
            f"{kind.plural}/{name}"
            for kind in self._kinds
            for thing in self.api.list(kind)
            if not _is_everywhere(name := name_of(thing))
        ]

    def wait_empty(self, contestant: str) -> None:
        """Wait until all objects of a contestant are deleted."""
        if not wait_until(lambda: not self.find_objects(), timeout_s=LIMIT_S, every_s=0.2):
            remaining = ", ".join(self.find_objects())
            raise SystemExit(f"kubernetes: {contestant} did not delete: {remaining}")

    def clear(self) -> None:
        """Delete everything, with one second for containers to end."""
        for kind in self._kinds:
            for thing in self.api.list(kind):
                if not _is_everywhere(name := name_of(thing)):
                    grace_s = 1.0 if kind is PODS else None
                    self.api.delete(kind, name, grace_s=grace_s)
        self._shorten_grace()

    def _shorten_grace(self) -> None:
        """Delete the remaining pods, which may have their full grace period from their owner's deletion."""
        for pod in self.pods():
            self.api.delete(PODS, name_of(pod), grace_s=1.0)

    # -- stamps --------------------------------------------------------------------------------

    def wait_stamps(self, num: int, *, contestant: str) -> list[Stamp]:
        """Wait until `num` ranks have printed a stamp, and return the stamps."""
        stamps: list[Stamp] = []

        def is_complete() -> bool:
            stamps[:] = [stamp for pod in self.pods() for stamp in self.read_pod(pod)]
            return len(stamps) >= num

        if not wait_until(is_complete, timeout_s=LIMIT_S, every_s=0.5):
            raise SystemExit(
                f"kubernetes: {contestant}: {len(stamps)} of {num} ranks printed a stamp "
                f"within {LIMIT_S:g} s"
            )
        return stamps

    def read_pod(self, pod: Object) -> list[Stamp]:
        if pod["status"].get("phase") not in ("Running", "Succeeded"):
            return []
        try:
            log = self.api.read_log(name_of(pod))
        except ClusterError:  # the container is still starting
            return []
        return read_stamps(log.decode(errors="replace"))

    def check_spread(self, contestant: str, nodes: int) -> None:
        """Exit unless each pod runs on a host of its own."""
        hosts = {pod["spec"].get("nodeName") for pod in self.pods()}
        if len(hosts) != nodes:
            raise SystemExit(
                f"kubernetes: {contestant} ran on {len(hosts)} host(s), not on {nodes}: {hosts}"
            )


def read_stamps(text: str) -> list[Stamp]:
    """Return the ranks' stamps in any output, with or without a prefix on the line."""
    return [json.loads(found) for found in _STAMP.findall(text)]


def _is_everywhere(name: str) -> bool:
    return name in ("kube-root-ca.crt", "kubernetes") or name.startswith("default-token-")


@contextmanager
def open_place(api: Api, namespace: str) -> Iterator[Place]:
    """Yield the namespace. Delete it afterwards if this call created it."""
    is_new = _create(api, namespace)
    place = Place(connect(context=api.context, namespace=namespace))
    if found := place.find_objects():
        raise SystemExit(
            f"kubernetes: namespace {namespace} is in use ({', '.join(found[:5])})\n"
            "hint: pass an empty or new namespace with --namespace"
        )
    try:
        yield place
    finally:
        place.clear()
        if is_new:
            _remove(api, namespace)


def _create(api: Api, namespace: str) -> bool:
    try:
        api.get(NAMESPACES, namespace)
    except NotFound:
        api.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}},
        )
        return True
    return False


def _remove(api: Api, namespace: str) -> None:
    api.delete(NAMESPACES, namespace)
    is_gone: Callable[[], bool] = lambda: not _exists(api, namespace)  # noqa: E731
    if not wait_until(is_gone, timeout_s=LIMIT_S, every_s=0.5):
        raise SystemExit(f"kubernetes: namespace {namespace} still exists after {LIMIT_S:g} s")


def _exists(api: Api, namespace: str) -> bool:
    try:
        api.get(NAMESPACES, namespace)
    except NotFound:
        return False
    return True

"""The namespace in which all contestants run, one after another: made, read, emptied, removed.

Everything here goes over the API, so that only what is timed starts programs. Every wait has a deadline.
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
# owners first: they would make again what they own
_KINDS: tuple[ObjectKind, ...] = (
    *(TRAIN_JOBS, TRAINING_RUNTIMES, PYTORCH_JOBS, _JOB_SETS, STATEFUL_SETS, JOBS, PODS),
    *(SERVICES, NETWORK_POLICIES, SECRETS, CONFIG_MAPS, PVCS),
)
_STAMP = re.compile(r"BENCH (\{.*\})")

Object = dict[str, Any]
Stamp = dict[str, float]


class Place:
    """One namespace of one cluster: that of the Api."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self._kinds = [kind for kind in _KINDS if self.serves(kind)]

    @property
    def namespace(self) -> str:
        return self.api.namespace

    def serves(self, kind: ObjectKind) -> bool:
        """Whether the cluster knows this kind."""
        root = f"/apis/{kind.api_version}" if kind.group else f"/api/{kind.api_version}"
        try:
            found = self.api.request("GET", root)
        except NotFound:
            return False
        return any(resource["name"] == kind.plural for resource in found["resources"])

    def count_nodes(self) -> int:
        """Nodes that take pods."""
        return sum(not node["spec"].get("unschedulable") for node in self.api.list(NODES))

    def pods(self) -> list[Object]:
        return self.api.list(PODS)

    # -- what is in it -------------------------------------------------------------------------

    def left(self) -> list[str]:
        """All that is there and does not belong to every namespace."""
        return [
            f"{kind.plural}/{name}"
            for kind in self._kinds
            for thing in self.api.list(kind)
            if not _is_everywhere(name := name_of(thing))
        ]

    def wait_empty(self, who: str) -> None:
        """Until nothing of a contestant is there any more."""
        if not wait_until(lambda: not self.left(), timeout_s=LIMIT_S, every_s=0.2):
            raise SystemExit(f"kubernetes: {who} left behind: {', '.join(self.left())}")

    def clear(self) -> None:
        """Delete everything; containers get a second to end."""
        for kind in self._kinds:
            for thing in self.api.list(kind):
                if not _is_everywhere(name := name_of(thing)):
                    grace_s = 1.0 if kind is PODS else None
                    self.api.delete(kind, name, grace_s=grace_s)
        self._hurry()

    def _hurry(self) -> None:
        """Pods whose owner was deleted may have been given their whole grace meanwhile."""
        for pod in self.pods():
            self.api.delete(PODS, name_of(pod), grace_s=1.0)

    # -- what its pods say ---------------------------------------------------------------------

    def wait_stamps(self, num: int, *, who: str) -> list[Stamp]:
        """What the pods printed, once `num` ranks have spoken."""
        stamps: list[Stamp] = []

        def is_complete() -> bool:
            stamps[:] = [stamp for pod in self.pods() for stamp in self.read_pod(pod)]
            return len(stamps) >= num

        if not wait_until(is_complete, timeout_s=LIMIT_S, every_s=0.5):
            raise SystemExit(
                f"kubernetes: {who}: {len(stamps)} of {num} ranks spoke in {LIMIT_S:g} s"
            )
        return stamps

    def read_pod(self, pod: Object) -> list[Stamp]:
        if pod["status"].get("phase") not in ("Running", "Succeeded"):
            return []
        try:
            log = self.api.read_log(name_of(pod))
        except ClusterError:  # its container is just starting
            return []
        return read_stamps(log.decode(errors="replace"))

    def check_spread(self, who: str, nodes: int) -> None:
        """The pods must be on as many hosts as there are pods."""
        hosts = {pod["spec"].get("nodeName") for pod in self.pods()}
        if len(hosts) != nodes:
            raise SystemExit(
                f"kubernetes: {who} ran on {len(hosts)} host(s), not on {nodes}: {hosts}"
            )


def read_stamps(text: str) -> list[Stamp]:
    """The ranks' own lines in any output, whatever stands before them on the line."""
    return [json.loads(found) for found in _STAMP.findall(text)]


def _is_everywhere(name: str) -> bool:
    return name in ("kube-root-ca.crt", "kubernetes") or name.startswith("default-token-")


@contextmanager
def opened(api: Api, namespace: str) -> Iterator[Place]:
    """The namespace while it is needed; one that was not there before goes again."""
    is_new = _create(api, namespace)
    place = Place(connect(context=api.context, namespace=namespace))
    if found := place.left():
        raise SystemExit(
            f"kubernetes: namespace {namespace} is in use ({', '.join(found[:5])}): "
            "name an empty one, or one that is not there yet, with --namespace"
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
        raise SystemExit(f"kubernetes: namespace {namespace} is not gone after {LIMIT_S:g} s")


def _exists(api: Api, namespace: str) -> bool:
    try:
        api.get(NAMESPACES, namespace)
    except NotFound:
        return False
    return True

"""The objects of the deep check: a suspended Indexed Job of two pods, a headless Service, a NetworkPolicy.

Pure. As restricted as the pods of our jobs, so that they may run wherever those may. The policy leaves one
port closed on purpose: if it can be reached, nobody enforces policies.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass import names
from windlass.engines.dialects.kubernetes import INDEX_VARIABLE, KUBERNETES
from windlass.observe import probe

LABEL = "windlass.dev/doctor"
_DEADLINE_S = 180
_KEPT_S = 60
_USER = 1000
_RESOURCES = {"cpu": "500m", "memory": "1Gi"}

Object = dict[str, Any]


def render_job(name: str, image: str) -> Object:
    """Suspended: what the pods need is made before they are. Deletes itself in any case."""
    pod = _render_pod(name, image)
    return {
        "apiVersion": KUBERNETES.kind.api_version,
        "kind": KUBERNETES.kind.name,
        "metadata": _metadata(name),
        "spec": {
            "suspend": True,
            "completions": 2,
            "parallelism": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE_S,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
        },
    }


def _render_pod(name: str, image: str) -> Object:
    hosts = [f"{name}-{index}.{name}" for index in (0, 1)]
    source = Path(probe.__file__).read_text()
    container = {
        "name": names.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", source, f"$({INDEX_VARIABLE})", *hosts],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONUNBUFFERED", "value": "1"}],  # noqa: S108
        "resources": {"requests": _RESOURCES, "limits": _RESOURCES},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "restartPolicy": "Never",
        "subdomain": name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {LABEL: name}},
            }
        ],
        "containers": [container],
    }


def render_service(name: str, owner: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, owner),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name},
            "ports": [{"name": "probe", "port": probe.PORT}],
        },
    }


def render_policies(name: str, owner: Object, *, egress: bool) -> list[Object]:
    """The two reach each other, but not on one port; rules for going out only where there are some.

    Two objects: some firewalls take what one policy lets out as let in, too.
    """
    peers = [{"podSelector": {"matchLabels": {LABEL: name}}}]
    ports = [{"protocol": "TCP", "port": probe.CLOSED_PORT + 1, "endPort": 65535}]
    into = {"policyTypes": ["Ingress"], "ingress": [{"from": peers, "ports": ports}]}
    policies = [_render_policy(name, name, owner, into)]
    if egress:
        dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
        out = {"policyTypes": ["Egress"], "egress": [{"to": peers}, {"ports": dns}]}
        policies.append(_render_policy(f"{name}-out", name, owner, out))
    return policies


def _render_policy(policy: str, name: str, owner: Object, rules: Object) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {**_metadata(name, owner), "name": policy},
        "spec": {"podSelector": {"matchLabels": {LABEL: name}}, **rules},
    }


def _labels(name: str) -> dict[str, str]:
    return {LABEL: name, names.LABEL_MANAGED_BY: "windlass"}


def _metadata(name: str, owner: Object | None = None) -> Object:
    owners = {"ownerReferences": [owner]} if owner else {}
    return {"name": name, "labels": _labels(name), **owners}

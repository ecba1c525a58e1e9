"""What every job on a cluster has besides its main object: two Services, Secrets, a NetworkPolicy, claims.

Pure: a plan in, dicts out. Ids, file contents and the owner are arguments. The main object is a dialect's.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from windlass import names
from windlass.kube.kinds import ObjectKind
from windlass.kube.mounts import named_mounts, pod_of
from windlass.kube.naming import (
    claim_name,
    headless_name,
    lead_name,
    make_labels,
    make_selector,
    part_name,
)
from windlass.plan.plan import Plan
from windlass.spec.storage import ACCESS_MODES, NewClaim

Object = dict[str, Any]


def make_owner(kind: ObjectKind, body: Mapping[str, Any]) -> Object:
    """The reference to an object that was created, for what it owns."""
    return {
        "apiVersion": kind.api_version,
        "kind": kind.name,
        "name": body["metadata"]["name"],
        "uid": body["metadata"]["uid"],
        "controller": False,
        "blockOwnerDeletion": False,
    }


def make_metadata(
    plan: Plan, name: str, owner: Object | None = None, annotations: Object | None = None
) -> Object:
    """Metadata of one object of a job."""
    pod = pod_of(plan)
    metadata = {
        "name": name,
        "namespace": pod.namespace,
        "labels": {**make_labels(plan), **pod.labels},
        "annotations": annotations,
        "ownerReferences": [owner] if owner else None,
    }
    return {key: value for key, value in metadata.items() if value}


def make_headless(plan: Plan, owner: Object | None = None) -> Object:
    """Every pod's name, from the moment it has an address."""
    spec = {"clusterIP": "None", "selector": make_selector(plan)}
    ports = {"agent": names.AGENT_PORT, "rdzv": names.POD_MASTER_PORT}
    return _make_service(plan, headless_name(plan.job_id), spec, ports, owner)


def make_lead_service(
    plan: Plan, lead_labels: Mapping[str, str], owner: Object | None = None
) -> Object:
    """An address for node 0 that is there before node 0 is, and outlives it."""
    spec = {"type": "ClusterIP", "selector": {**make_selector(plan), **lead_labels}}
    return _make_service(plan, lead_name(plan.job_id), spec, {"agent": names.AGENT_PORT}, owner)


def _make_service(
    plan: Plan, name: str, spec: Object, ports: Mapping[str, int], owner: Object | None
) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": make_metadata(plan, name, owner),
        "spec": {
            **spec,
            "publishNotReadyAddresses": True,
            "ports": [
                {"name": port, "port": number, "targetPort": number}
                for port, number in ports.items()
            ],
        },
    }


def make_secret(plan: Plan, files: Mapping[str, bytes], owner: Object | None = None) -> Object:
    """The job's own Secret: plan and certificates, which clients read, too."""
    return _make_secret(plan, plan.job_id, files, owner)


def make_part(
    plan: Plan, number: int, pieces: Mapping[str, bytes], owner: Object | None = None
) -> Object:
    """One of the Secrets with pieces of the agent and other large files, which only pods read."""
    return _make_secret(plan, part_name(plan.job_id, number), pieces, owner)


def _make_secret(plan: Plan, name: str, files: Mapping[str, bytes], owner: Object | None) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": make_metadata(plan, name, owner),
        "type": "Opaque",
        "immutable": True,
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }


def make_policy(plan: Plan, *, with_egress: bool, owner: Object | None = None) -> Object:
    """Only the job's own pods may come in. Going out is only spoken of where others already forbade it."""
    own = {"podSelector": {"matchLabels": make_selector(plan)}}
    spec: Object = {
        **own,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [own]}],
    }
    if ports := pod_of(plan).open_ports:
        opened = [{"port": port, "protocol": "TCP"} for port in ports]
        spec["ingress"].append({"from": [{"podSelector": {}}], "ports": opened})
    if with_egress:
        dns = [{"port": 53, "protocol": protocol} for protocol in ("UDP", "TCP")]
        spec["policyTypes"] = ["Ingress", "Egress"]
        spec["egress"] = [{"to": [own]}, {"ports": dns}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": make_metadata(plan, plan.job_id, owner),
        "spec": spec,
    }


def make_claims(plan: Plan, owner: Object | None = None) -> list[Object]:
    """The claims that are made with the job, and end with it."""
    return [
        _make_claim(plan, claim_name(plan.job_id, name), mount, owner)
        for name, mount in named_mounts(pod_of(plan))
        if isinstance(mount, NewClaim)
    ]


def _make_claim(plan: Plan, name: str, claim: NewClaim, owner: Object | None) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": make_metadata(plan, name, owner),
        "spec": make_claim_spec(claim, num_pods=len(plan.nodes)),
    }


def make_claim_spec(claim: NewClaim, *, num_pods: int) -> Object:
    """What is asked of the storage; many pods want to write to it at once."""
    access = claim.access or ("RWX" if num_pods > 1 else "RWO")
    spec: Object = {
        "accessModes": [ACCESS_MODES[access]],
        "resources": {"requests": {"storage": claim.size}},
    }
    if claim.storage_class:
        spec["storageClassName"] = claim.storage_class
    return spec

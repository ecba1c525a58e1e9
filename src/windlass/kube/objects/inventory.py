"""Inventory of a cluster, from the JSON of readable objects: operators, GPUs, storage, network policies.

No I/O. Reports only known facts. Storage provisioners and network plugins are recognized by name, so an
unrecognized name is reported as unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from windlass.errors import SpecError
from windlass.kube.objects.fields import Object, condition_of, is_true, labels_of, name_of
from windlass.spec.node_resources import BILLION, read_quantity

# Supported operators: the API group, the resource that distinguishes operators of the same group, and a
# word in the name of the operator's Deployment.
_OPERATORS: Mapping[str, tuple[str, str, str]] = {
    "JobSet": ("jobset.x-k8s.io", "jobsets", "jobset"),
    "Kubeflow Trainer": ("trainer.kubeflow.org", "trainjobs", "trainer"),
    "training-operator": ("kubeflow.org", "pytorchjobs", "training-operator"),
    "KubeRay": ("ray.io", "rayclusters", "kuberay"),
    "Kueue": ("kueue.x-k8s.io", "workloads", "kueue"),
    "Monarch": ("monarch.pytorch.org", "monarchmeshes", "monarch"),
}
_VERSION_LABEL = "app.kubernetes.io/version"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_SHARED = (
    "nfs",
    "efs",
    "cephfs",
    "azurefile",
    "file.csi",
    "filestore",
    "lustre",
    "gluster",
    "weka",
)
_SINGLE = (
    "ebs",
    "pd.csi",
    "gce-pd",
    "disk.csi",
    "cinder",
    "rbd",
    "local-path",
    "hostpath",
    "topolvm",
)
_ENFORCERS = ("calico", "cilium", "antrea", "weave", "kube-router", "ovn", "kindnet", "azure-npm")
_ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """Number of GPUs with one resource name, on all nodes that accept pods."""

    num_nodes: int
    num_total: int
    num_free: int
    most_free: int  # largest number of free GPUs on one node


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    num_ready: int
    gpus: Mapping[str, Gpus]


def find_operators(
    groups: Iterable[Object], crds: Iterable[Object], deployments: Sequence[Object] = ()
) -> tuple[dict[str, str], list[str]]:
    """Return the installed operators with their known versions, and the names of the absent ones."""
    served = {str(group.get("name")): group for group in groups}
    by_name = {name_of(crd): crd for crd in crds}
    installed, absent = {}, []
    for name, (group, plural, word) in _OPERATORS.items():
        crd = by_name.get(f"{plural}.{group}")
        # Two operators have served kubeflow.org. If CRDs are readable, they show which one is installed.
        if group not in served or (by_name and crd is None):
            absent.append(name)
            continue
        versions = ", ".join(str(v.get("version")) for v in served[group].get("versions") or ())
        running = [body for body in deployments if word in name_of(body)]
        release = next(filter(None, map(read_release, (crd or {}, *running))), "")
        installed[name] = f"{group} {versions}{f', release {release}' if release else ''}"
    return installed, absent


def read_release(body: Object) -> str:
    """Return the version label of a CRD or Deployment, or the tag of the Deployment's image."""
    if version := labels_of(body).get(_VERSION_LABEL):
        return version
    template = body.get("spec", {}).get("template") or {}
    for container in template.get("spec", {}).get("containers") or ():
        tag = str(container.get("image", "")).partition("@")[0].rpartition("/")[2].partition(":")[2]
        if tag:
            return tag
    return ""


def count_gpus(nodes: Sequence[Object], pods: Iterable[Object]) -> Counts:
    """Count all GPUs, and those that no pod has requested."""
    usable = [node for node in nodes if _takes_pods(node)]
    resources = sorted(
        {key for node in usable for key in _allocatable(node) if "gpu" in key.lower()}
    )
    used = _count_used(pods, resources)
    gpus = {}
    for resource in resources:
        totals = {name_of(n): _whole(_allocatable(n).get(resource, "0")) for n in usable}
        free = {name: total - used.get((name, resource), 0) for name, total in totals.items()}
        if any(totals.values()):
            gpus[resource] = Gpus(
                num_nodes=sum(total > 0 for total in totals.values()),
                num_total=sum(totals.values()),
                num_free=sum(max(0, amount) for amount in free.values()),
                most_free=max(0, *free.values()),
            )
    return Counts(num_ready=len(usable), gpus=gpus)


def _takes_pods(node: Object) -> bool:
    is_ready = is_true(condition_of(node, "Ready"))
    return is_ready and not node.get("spec", {}).get("unschedulable")


def _allocatable(node: Object) -> Mapping[str, str]:
    return node.get("status", {}).get("allocatable") or {}


def _whole(text: object) -> int:
    try:
        return read_quantity(str(text)) // BILLION
    except SpecError:
        return 0


def _count_used(pods: Iterable[Object], resources: Sequence[str]) -> dict[tuple[str, str], int]:
    used: dict[tuple[str, str], int] = {}
    for pod in pods:
        node = pod.get("spec", {}).get("nodeName")
        if not node or pod.get("status", {}).get("phase") in _ENDED:
            continue
        for container in pod["spec"].get("containers") or ():
            # Requests and limits of an extended resource are always equal.
            limits = (container.get("resources") or {}).get("limits") or {}
            for resource in resources:
                key = (str(node), resource)
                used[key] = used.get(key, 0) + _whole(limits.get(resource, "0"))
    return used


def find_default_class(classes: Iterable[Object]) -> Object | None:
    for storage in classes:
        annotations = storage.get("metadata", {}).get("annotations") or {}
        if annotations.get(_DEFAULT_CLASS) == "true":
            return storage
    return None


def shares_volumes(provisioner: str) -> bool | None:
    """Return whether many nodes can use this provisioner's volumes, or None if unknown."""
    if any(mark in provisioner for mark in _SHARED):
        return True
    return False if any(mark in provisioner for mark in _SINGLE) else None


def find_enforcer(daemon_sets: Iterable[str]) -> str:
    """Return the name of the network plugin that enforces NetworkPolicy, or an empty string."""
    names = list(daemon_sets)
    return next((mark for mark in _ENFORCERS if any(mark in name for name in names)), "")


def describe_policies(policies: Sequence[Object]) -> str:
    """Summarize the network policies of a namespace."""
    if not policies:
        return "no policy in the namespace"
    types = {
        kind
        for policy in policies
        if not policy.get("spec", {}).get("podSelector")
        for kind in policy.get("spec", {}).get("policyTypes") or ()
    }
    closed = " and ".join(sorted(kind.lower() for kind in types))
    rules = f", {closed} of all pods restricted" if closed else ""
    return f"{len(policies)} in the namespace{rules}"

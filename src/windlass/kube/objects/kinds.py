"""Kinds of objects and their paths on an API server. No I/O.

Only kinds that Windlass uses have a constant here. Create any other kind with `ObjectKind(...)`.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

FIELD_MANAGER = "windlass"


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """One kind of object: `ObjectKind("batch/v1", "jobs", "Job")`."""

    api_version: str
    plural: str
    name: str
    namespaced: bool = True

    @property
    def group(self) -> str:
        """The API group, like "batch". Empty for the core group: pods, services, secrets."""
        return self.api_version.rpartition("/")[0]

    def path(self, *, namespace: str, name: str = "", part: str = "") -> str:
        """Return the path of a namespace's objects, of one object, or of a subresource (`log`)."""
        root = "apis" if self.group else "api"
        place = ("namespaces", namespace) if self.namespaced else ()
        steps = (*place, self.plural, *((name,) if name else ()), *((part,) if part else ()))
        return f"/{root}/{self.api_version}/" + "/".join(quote(step, safe="") for step in steps)


JOBS = ObjectKind("batch/v1", "jobs", "Job")
PODS = ObjectKind("v1", "pods", "Pod")
SECRETS = ObjectKind("v1", "secrets", "Secret")
CONFIG_MAPS = ObjectKind("v1", "configmaps", "ConfigMap")
SERVICES = ObjectKind("v1", "services", "Service")
SERVICE_ACCOUNTS = ObjectKind("v1", "serviceaccounts", "ServiceAccount")
EVENTS = ObjectKind("v1", "events", "Event")
PVCS = ObjectKind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
RESOURCE_QUOTAS = ObjectKind("v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = ObjectKind("v1", "limitranges", "LimitRange")
NODES = ObjectKind("v1", "nodes", "Node", namespaced=False)
NAMESPACES = ObjectKind("v1", "namespaces", "Namespace", namespaced=False)
NETWORK_POLICIES = ObjectKind("networking.k8s.io/v1", "networkpolicies", "NetworkPolicy")
STATEFUL_SETS = ObjectKind("apps/v1", "statefulsets", "StatefulSet")
DAEMON_SETS = ObjectKind("apps/v1", "daemonsets", "DaemonSet")
PYTORCH_JOBS = ObjectKind("kubeflow.org/v1", "pytorchjobs", "PyTorchJob")
MONARCH_MESHES = ObjectKind("monarch.pytorch.org/v1alpha1", "monarchmeshes", "MonarchMesh")
TRAIN_JOBS = ObjectKind("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob")
TRAINING_RUNTIMES = ObjectKind(
    "trainer.kubeflow.org/v1alpha1", "trainingruntimes", "TrainingRuntime"
)
CLUSTER_TRAINING_RUNTIMES = ObjectKind(
    *("trainer.kubeflow.org/v1alpha1", "clustertrainingruntimes", "ClusterTrainingRuntime"),
    namespaced=False,
)
RAY_CLUSTERS = ObjectKind("ray.io/v1", "rayclusters", "RayCluster")
RAY_JOBS = ObjectKind("ray.io/v1", "rayjobs", "RayJob")
STORAGE_CLASSES = ObjectKind(
    "storage.k8s.io/v1", "storageclasses", "StorageClass", namespaced=False
)
CRDS = ObjectKind(
    "apiextensions.k8s.io/v1",
    "customresourcedefinitions",
    "CustomResourceDefinition",
    namespaced=False,
)

"""The dialect `monarchmesh`: nodes are the pods of a MonarchMesh, which its operator makes as a StatefulSet.

Pure, and the only file that knows what a MonarchMesh is. It is never held back and never ends: pods wait for
the Secret that they mount, agents of a job that has ended stay, and the client that has all a job left
removes it. Pods are always replaced under the same name. A name has no dashes.
"""

from __future__ import annotations

import re
from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import Adoption, Dialect, ObjectPhase
from windlass.errors import SpecError
from windlass.kube.client.access import END_LOST_PODS, Need
from windlass.kube.objects.fields import Object, controller_name_of, labels_of, name_of, read_index
from windlass.kube.objects.kinds import MONARCH_MESHES, STATEFUL_SETS
from windlass.kube.objects.manifests import FileNames, make_metadata, pod_of
from windlass.kube.objects.naming import make_annotations
from windlass.kube.objects.pod_template import make_template
from windlass.plan.plan import Plan

LABEL_INDEX = "apps.kubernetes.io/pod-index"


def make_name(job_id: str) -> str:
    """The job's id without dashes, which no MonarchMesh may have."""
    return job_id.replace("-", "")


def render(plan: Plan, files: FileNames, submit: str = "") -> dict[str, Any]:
    """The MonarchMesh: as many pods as nodes. What labels it has, its operator gives the StatefulSet."""
    pod, name = pod_of(plan), make_name(plan.job_id)
    if pod.labels.get(names.LABEL_MESH, name) != name:
        raise SpecError(
            f"the mesh of this job is its MonarchMesh, {name}, and its operator gives pods that name",
            hint="leave out --mesh-name, or use --engine kubernetes",
        )
    metadata = make_metadata(plan, name, annotations=make_annotations(plan, submit))
    if pod.queue:
        metadata["labels"][names.LABEL_QUEUE] = pod.queue
    template = make_template(
        plan,
        files,
        env={names.ENV_STAYS_UP: "1", names.POD_HOSTS: f"{name}-{{index}}.{name}-svc"},
        env_fields={names.NODE_INDEX: f"metadata.labels['{LABEL_INDEX}']"},
        restart_policy="Always",
    )
    del template["spec"]["subdomain"]  # a StatefulSet gives its pods its own
    return {
        "apiVersion": MONARCH_MESHES.api_version,
        "kind": MONARCH_MESHES.name,
        "metadata": metadata,
        "spec": {"replicas": len(plan.nodes), "port": names.MONARCH_PORT, "podTemplate": template},
    }


def read_phase(mesh: Object) -> ObjectPhase:
    is_up = mesh.get("status", {}).get("readyReplicas")
    return ObjectPhase.STARTED if is_up else ObjectPhase.WAITING


def owns(pod: Object, _uid: str) -> bool:
    """By the name of the StatefulSet that controls it, which stands between a mesh's uid and its pods."""
    return controller_name_of(pod) == labels_of(pod).get(names.LABEL_MESH)


def index_of(pod: Object) -> int | None:
    return read_index(labels_of(pod).get(LABEL_INDEX, ""))


def index_in_name(pod: str, job_id: str) -> int | None:
    match = re.fullmatch(rf"{re.escape(make_name(job_id))}-(\d+)", pod)
    return int(match[1]) if match else None


MONARCHMESH = Dialect(
    name="monarchmesh",
    kind=MONARCH_MESHES,
    make_name=make_name,
    can=frozenset({"computes", "detach", "restarts", "timeout", "pods", "keys"}),
    needs=(Need(kind=MONARCH_MESHES, product="Monarch's operator 0.2"),),
    more_rights=(END_LOST_PODS,),
    operator="Monarch's operator",
    render=render,
    resize=lambda num_nodes: {"spec": {"replicas": num_nodes}},
    end_lost_pod={},  # its name is free then
    stays_up=True,
    read_end=lambda _mesh: None,
    read_phase=read_phase,
    num_pods=lambda mesh: int(mesh.get("spec", {}).get("replicas") or 0),
    read_hold=lambda _mesh, **_around: None,  # Kueue gates the pods
    pod_made="SuccessfulCreate",
    pod_maker=lambda mesh: (STATEFUL_SETS.name, name_of(mesh)),
    lead_labels={LABEL_INDEX: "0"},
    index_of=index_of,
    index_in_name=index_in_name,
    owns=owns,
    adoption=Adoption(
        pod_labels=lambda name: {names.LABEL_MESH: name},
        index_of=lambda _mesh, pod: index_of(pod),
    ),
)

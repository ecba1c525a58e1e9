"""Dialect `monarchmesh`: nodes are the pods of a MonarchMesh, which its operator makes as a StatefulSet.

This module performs no I/O. It is the only one that knows about MonarchMeshes. A mesh is never suspended and
never ends. Its pods wait for the Secret that they mount, and the agents of an ended job stay. The client that
has read all results removes the mesh. Pods are always replaced under the same name. A mesh's name has no
dashes.
"""

from __future__ import annotations

from typing import Any

from windlass import names
from windlass.engines.dialects.dialect import (
    Adoption,
    Dialect,
    make_main_object,
    read_index_in_name,
    read_index_label,
    read_ready_phase,
)
from windlass.errors import SpecError
from windlass.kube.client.access import END_LOST_PODS, Need
from windlass.kube.objects.fields import Object, controller_name_of, labels_of, name_of
from windlass.kube.objects.kinds import MONARCH_MESHES, STATEFUL_SETS
from windlass.kube.objects.manifests import FileNames, pod_of
from windlass.kube.objects.pod_template import make_template
from windlass.plan.plan import Plan

LABEL_INDEX = "apps.kubernetes.io/pod-index"


def make_name(job_id: str) -> str:
    """Return the job's id without dashes, because names of MonarchMeshes must not contain them."""
    return job_id.replace("-", "")


def render(plan: Plan, files: FileNames, submit: str = "") -> dict[str, Any]:
    """Return the MonarchMesh, with a pod per node. Its operator copies its labels to the StatefulSet."""
    pod, name = pod_of(plan), make_name(plan.job_id)
    if pod.labels.get(names.LABEL_MESH, name) != name:
        raise SpecError(
            f"the mesh of this job is its MonarchMesh, {name}, and its operator gives pods that name",
            hint="omit --mesh-name, or use --engine kubernetes",
        )
    template = make_template(
        plan,
        files,
        env={names.ENV_STAYS_UP: "1", names.POD_HOSTS: f"{name}-{{index}}.{name}-svc"},
        env_fields={names.NODE_INDEX: f"metadata.labels['{LABEL_INDEX}']"},
        restart_policy="Always",
    )
    del template["spec"]["subdomain"]  # a StatefulSet sets its own
    spec = {"replicas": len(plan.nodes), "port": names.MONARCH_PORT, "podTemplate": template}
    return make_main_object(plan, submit, MONARCH_MESHES, spec, name=name)


def owns(pod: Object, _uid: str) -> bool:
    """Return whether the mesh's StatefulSet controls the pod. The MonarchMesh itself never does."""
    return controller_name_of(pod) == labels_of(pod).get(names.LABEL_MESH)


index_of = read_index_label(LABEL_INDEX)
index_in_name = read_index_in_name(r"(?P<job>.+)-(?P<index>\d+)", make_name)


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
    end_lost_pod={},  # deleting it frees its name
    stays_up=True,
    read_phase=read_ready_phase,  # Kueue gates the pods instead of the mesh
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

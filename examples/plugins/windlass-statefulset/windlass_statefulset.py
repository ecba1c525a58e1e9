"""The engine `stateful`, whose nodes are the pods of a StatefulSet.

A StatefulSet never ends, restarts its containers, cannot be suspended, and numbers its pods.
"""

from __future__ import annotations

from windlass import names
from windlass.engines.dialects.dialect import (
    Dialect,
    make_main_object,
    read_index_in_name,
    read_index_label,
    read_ready_phase,
)
from windlass.kube.client.access import Need
from windlass.kube.objects.kinds import STATEFUL_SETS
from windlass.kube.objects.manifests import FileNames
from windlass.kube.objects.naming import headless_name, make_selector
from windlass.kube.objects.pod_template import make_template
from windlass.plan.plan import Plan

LABEL_INDEX = "apps.kubernetes.io/pod-index"  # set by Kubernetes on the pods of a StatefulSet


def render(plan: Plan, files: FileNames, submit: str) -> dict[str, object]:
    """Return the StatefulSet, with one pod per node and all pods started in parallel."""
    stays_up = {names.ENV_STAYS_UP: "1"}
    spec = {
        "serviceName": headless_name(plan.job_id),
        "replicas": len(plan.nodes),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": make_selector(plan)},
        "template": make_template(plan, files, env=stays_up, restart_policy="Always"),
    }
    return make_main_object(plan, submit, STATEFUL_SETS, spec)


STATEFUL_SET = Dialect(
    name="stateful",
    kind=STATEFUL_SETS,
    can=frozenset({"computes", "detach", "restarts", "timeout", "pods", "keys"}),
    needs=(Need(kind=STATEFUL_SETS, product="Kubernetes 1.28"),),
    render=render,
    resize=lambda num_nodes: {"spec": {"replicas": num_nodes}},
    stays_up=True,
    read_phase=read_ready_phase,
    lead_labels={LABEL_INDEX: "0"},
    index_of=read_index_label(LABEL_INDEX),
    index_in_name=read_index_in_name(r"(?P<job>.+)-(?P<index>\d+)"),
)

"""A dialect that only tests use: a StatefulSet whose pods run our agent.

It has what an Indexed Job has not: it never ends, starts its containers again, cannot be held back, and tells
its pods apart by an ordinal. So it shows that nothing outside a dialect knows what kind of object a job is.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from windlass import names
from windlass.engines.dialects import dialect_table
from windlass.engines.dialects.dialect import Dialect, ObjectPhase
from windlass.kube.client.access import Need
from windlass.kube.objects.fields import labels_of, read_index
from windlass.kube.objects.kinds import STATEFUL_SETS
from windlass.kube.objects.manifests import FileNames, make_metadata
from windlass.kube.objects.naming import headless_name, make_annotations, make_selector
from windlass.kube.objects.pod_template import make_template
from windlass.plan.plan import Plan

LABEL_INDEX = "apps.kubernetes.io/pod-index"
NAME = "stateful"


def render(plan: Plan, files: FileNames, submit: str) -> dict[str, Any]:
    spec = {
        "serviceName": headless_name(plan.job_id),
        "replicas": len(plan.nodes),
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": make_selector(plan)},
        "template": make_template(
            plan, files, env={names.ENV_STAYS_UP: "1"}, restart_policy="Always"
        ),
    }
    return {
        "apiVersion": STATEFUL_SETS.api_version,
        "kind": STATEFUL_SETS.name,
        "metadata": make_metadata(plan, plan.job_id, annotations=make_annotations(plan, submit)),
        "spec": spec,
    }


def read_phase(body: Mapping[str, Any]) -> ObjectPhase:
    is_up = body.get("status", {}).get("readyReplicas")
    return ObjectPhase.STARTED if is_up else ObjectPhase.WAITING


def index_in_name(pod: str, job_id: str) -> int | None:
    match = re.fullmatch(rf"{re.escape(job_id)}-(\d+)", pod)
    return int(match[1]) if match else None


STATEFUL_SET = Dialect(
    name=NAME,
    kind=STATEFUL_SETS,
    can=frozenset({"computes", "detach", "restarts", "timeout", "pods", "keys"}),
    needs=(Need(kind=STATEFUL_SETS, product="Kubernetes 1.9"),),
    render=render,
    resize=lambda num_nodes: {"spec": {"replicas": num_nodes}},
    stays_up=True,
    read_end=lambda _body: None,
    read_phase=read_phase,
    num_pods=lambda body: int(body.get("spec", {}).get("replicas") or 0),
    read_hold=lambda _body, **_around: None,
    lead_labels={LABEL_INDEX: "0"},
    index_of=lambda pod: read_index(labels_of(pod).get(LABEL_INDEX, "")),
    index_in_name=index_in_name,
)


def install(set_item: Callable[..., None] = operator.setitem) -> None:
    """Have this process know the dialect by its name, as an engine."""
    set_item(dialect_table._DIALECTS, NAME, f"{__name__}:STATEFUL_SET")

"""The pod of a job, as a template: what was asked becomes what the API server takes.

Pure. Runs under the `restricted` Pod Security standard unless it is patched out of it. What the pod does is
the agent's matter; here it only gets its files, its places and its limits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.kube.job_files import JOIN, FileNames
from windlass.kube.mounts import HIDDEN_KEY, make_mounts, make_volumes, pod_of
from windlass.kube.naming import (
    headless_name,
    lead_name,
    make_annotations,
    make_labels,
    make_selector,
)
from windlass.kube.patching import apply_patch
from windlass.plan.plan import Plan
from windlass.spec.placement import Toleration
from windlass.spec.pod_spec import PodSpec
from windlass.spec.storage import SecretVariable, SecretVariables

Object = dict[str, Any]

_LOST_S = 10  # how long a pod stays bound to a node that does not answer
_STOP_S = 10  # what the agent has for itself after the ranks' grace
_HOST = "kubernetes.io/hostname"
_NOTHING: Mapping[str, str] = {}


def make_template(
    plan: Plan,
    files: FileNames,
    *,
    env_fields: Mapping[str, str] = _NOTHING,
    env: Mapping[str, str] = _NOTHING,
    restart_policy: str = "Never",
    container: str = names.CONTAINER,
    is_worker: bool = False,
) -> Object:
    """The template of every pod.

    `env` are variables that a dialect adds for its agents, `env_fields` those that are fields of the pod;
    `container` is what its kind has our container called, which users know by our own name for it. Where
    pods but the first have a size of their own, `is_worker` makes theirs.
    """
    pod = pod_of(plan).of_workers() if is_worker else pod_of(plan)
    plan = replace(plan, pod=pod)
    template = {
        "metadata": {
            "labels": {**make_labels(plan), **pod.labels},
            "annotations": {**make_annotations(plan), **pod.annotations},
        },
        "spec": {
            **make_placement(pod, make_selector(plan), num_pods=len(plan.nodes)),
            "restartPolicy": restart_policy,
            "subdomain": headless_name(plan.job_id),
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": math.ceil(plan.grace_s) + _STOP_S,
            "securityContext": make_pod_security(pod),
            "containers": [_make_container(plan, files, _make_env(plan, env_fields, env))],
            "volumes": make_volumes(plan, files),
        },
    }
    patched = apply_patch(template, pod.patch) if pod.patch else template
    return patched if container == names.CONTAINER else _rename_container(patched, container)


def _rename_container(template: Object, name: str) -> Object:
    """Our container under another name, which the pod tells to whoever looks at it."""
    metadata, spec = template["metadata"], template["spec"]
    containers = [
        {**one, "name": name} if one["name"] == names.CONTAINER else one
        for one in spec["containers"]
    ]
    annotations = {**metadata.get("annotations", {}), names.ANNOTATION_CONTAINER: name}
    return {
        "metadata": {**metadata, "annotations": annotations},
        "spec": {**spec, "containers": containers},
    }


def _make_container(plan: Plan, files: FileNames, env: list[Object]) -> Object:
    pod = pod_of(plan)
    container = {
        "name": names.CONTAINER,
        "image": pod.image,
        "imagePullPolicy": pull_policy(pod.image),
        "command": [
            *(plan.python or "python3", "-I", "-S", "-c", JOIN),
            *(names.PARTS_FOLDER, names.FILES_FOLDER),
        ],
        "env": [*env, *make_secret_env(pod), *_make_hidden_env(plan, files)],
        "envFrom": make_env_from(pod),
        "resources": make_resources(pod),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "File",
        "volumeMounts": make_mounts(plan),
    }
    return {key: value for key, value in container.items() if value}


def pull_policy(image: str) -> str:
    """A tag that moves is looked up each time; others only where the image is missing."""
    tag = image.rpartition("/")[2].partition(":")[2]
    return "IfNotPresent" if "@" in image or (tag and tag != "latest") else "Always"


def _make_env(plan: Plan, more_fields: Mapping[str, str], more: Mapping[str, str]) -> list[Object]:
    fields = {
        names.POD_IP: "status.podIP",
        names.POD_NAME: "metadata.name",
        names.POD_UID: "metadata.uid",
        names.K8S_NODE: "spec.nodeName",
        **more_fields,
    }
    # a user id that is in no passwd must do: libraries ask these before they ask the system
    texts = {
        names.LEAD: lead_name(plan.job_id),
        "HOME": names.HOME_FOLDER,
        "USER": "windlass",
        "LOGNAME": "windlass",
        **more,
    }
    return [
        *({"name": n, "valueFrom": {"fieldRef": {"fieldPath": p}}} for n, p in fields.items()),
        *({"name": name, "value": value} for name, value in texts.items()),
    ]


def make_secret_env(pod: PodSpec) -> list[Object]:
    """Variables whose value only the cluster knows."""
    return [
        {
            "name": secret.variable,
            "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}},
        }
        for secret in pod.secrets
        if isinstance(secret, SecretVariable)
    ]


def _make_hidden_env(plan: Plan, files: FileNames) -> list[Object]:
    """Variables whose value is in the job's own Secret."""
    return [
        {
            "name": key.removeprefix(HIDDEN_KEY),
            "valueFrom": {"secretKeyRef": {"name": plan.job_id, "key": key}},
        }
        for key in files.keys
        if key.startswith(HIDDEN_KEY)
    ]


def make_env_from(pod: PodSpec) -> list[Object]:
    """Secrets that are variables as a whole."""
    whole = [secret for secret in pod.secrets if isinstance(secret, SecretVariables)]
    return [{"secretRef": {"name": secret.secret}} for secret in whole]


def make_resources(pod: PodSpec) -> Object:
    """Limits, and the same as requests unless less was asked for."""
    limits = {
        "cpu": pod.cpus,
        "memory": pod.memory,
        "ephemeral-storage": pod.ephemeral_storage,
        pod.gpu_resource: str(pod.gpus) if pod.gpus else "",
    }
    limits = {name: value for name, value in limits.items() if value}
    keys = {"cpus": "cpu", "ephemeral_storage": "ephemeral-storage"}
    asked = {keys.get(name, name): value for name, value in pod.requests.items()}
    resources = {"limits": limits, "requests": {**limits, **asked}}
    return {name: values for name, values in resources.items() if values}


def make_pod_security(pod: PodSpec) -> Object:
    """Not root unless it was asked for; files of the pod belong to its user."""
    security: Object = {
        "runAsNonRoot": pod.run_as != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if pod.run_as is not None:
        ids = dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), pod.run_as)
        security |= {**ids, "fsGroupChangePolicy": "OnRootMismatch"}
    return security


CONTAINER_SECURITY: Object = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


def make_placement(pod: PodSpec, selector: Mapping[str, str], *, num_pods: int) -> Object:
    """Where the pods that `selector` selects may run, with which rights and how urgent they are."""
    placement = {
        "nodeSelector": _make_node_selector(pod),
        "affinity": _make_affinity(pod, selector),
        "topologySpreadConstraints": _make_spread(pod, selector) if num_pods > 1 else [],
        "tolerations": _make_tolerations(pod),
        "priorityClassName": pod.priority_class,
        "serviceAccountName": pod.service_account,
        "imagePullSecrets": [{"name": name} for name in pod.pull_secrets],
    }
    return {key: value for key, value in placement.items() if value}


def _wanted_labels(pod: PodSpec) -> dict[str, str]:
    return {**pod.node_selector, **({pod.gpu_label: pod.gpu_type} if pod.gpu_type else {})}


def _make_node_selector(pod: PodSpec) -> dict[str, str]:
    return {key: value for key, value in _wanted_labels(pod).items() if "|" not in value}


def _make_affinity(pod: PodSpec, selector: Mapping[str, str]) -> Object:
    either = {key: value.split("|") for key, value in _wanted_labels(pod).items() if "|" in value}
    affinity: Object = {}
    if either:
        terms = [{"key": key, "operator": "In", "values": values} for key, values in either.items()]
        required = {"nodeSelectorTerms": [{"matchExpressions": terms}]}
        affinity["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": required}
    for key, topology in (
        ("podAffinity", pod.pack),
        ("podAntiAffinity", _HOST if pod.spread == "hard" else ""),
    ):
        if topology:
            term = {
                "topologyKey": topology,
                "labelSelector": {"matchLabels": dict(selector)},
            }
            affinity[key] = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    return affinity


def _make_spread(pod: PodSpec, selector: Mapping[str, str]) -> list[Object]:
    if pod.spread != "soft":
        return []
    return [
        {
            "maxSkew": 1,
            "topologyKey": _HOST,
            "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": {"matchLabels": dict(selector)},
        }
    ]


def _make_tolerations(pod: PodSpec) -> list[Object]:
    lost = [
        {
            "key": f"node.kubernetes.io/{why}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": _LOST_S,
        }
        for why in ("not-ready", "unreachable")
    ]
    # GPU nodes are often closed to all who do not ask for one
    gpus = [Toleration(key=pod.gpu_resource, effect="NoSchedule")] if pod.gpus else []
    return [*lost, *(_make_toleration(taint) for taint in (*gpus, *pod.tolerations))]


def _make_toleration(taint: Toleration) -> Object:
    fields = {
        "key": taint.key,
        "operator": "Equal" if taint.value else "Exists",
        "value": taint.value,
        "effect": taint.effect,
    }
    return {key: value for key, value in fields.items() if value}

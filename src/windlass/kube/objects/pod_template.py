"""Pod template of a job, and pod patches. No I/O.

The template sets a pod's files, placement and limits. The agent does the rest. The pod complies with the
`restricted` Pod Security standard unless a patch changes that.

A patch is a strategic merge patch, which changes only the fields that it contains. Tables are merged, and
null deletes a key. Lists of named items (containers, env, volumes, mounts ...) are merged item by item.
Tolerations are appended. Every other list is replaced. `$patch: delete` in an item and `$patch: replace`
in a table work as in kubectl.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from windlass import names
from windlass.errors import SpecError
from windlass.kube.objects.manifests import (
    HIDDEN_KEY,
    JOIN,
    FileNames,
    make_mounts,
    make_volumes,
    pod_of,
)
from windlass.kube.objects.naming import (
    headless_name,
    lead_name,
    make_annotations,
    make_labels,
    make_selector,
)
from windlass.plan.plan import Plan
from windlass.spec.pod_spec import PodSpec, Toleration
from windlass.spec.storage import SecretVariable, SecretVariables

# The Kubernetes API's merge keys for the types that a pod template can contain.
_KEYS: Mapping[str, tuple[str, ...]] = {
    "containers": ("name",),
    "initContainers": ("name",),
    "env": ("name",),
    "volumes": ("name",),
    "volumeMounts": ("mountPath",),
    "volumeDevices": ("devicePath",),
    "ports": ("containerPort",),
    "imagePullSecrets": ("name",),
    "hostAliases": ("ip",),
    "topologySpreadConstraints": ("topologyKey",),
    "resourceClaims": ("name",),
    "schedulingGates": ("name",),
    "resizePolicy": ("resourceName",),
}
_ADDED = ("tolerations",)
_ONE_OF = {"volumes": "name", "env": "name"}  # each item has one source, which a patch replaces
_DIRECTIVE = "$patch"
Object = dict[str, Any]

_LOST_S = 10  # how long a pod stays bound to an unreachable node
_STOP_S = 10  # time for the agent itself after the ranks' grace period
_HOST = "kubernetes.io/hostname"
_NOTHING: Mapping[str, str] = {}


def apply_patch(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the template with the patch merged in."""
    return _merge_table(template, patch, "patch")


def _merge_table(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> dict[str, Any]:
    directive = new.get(_DIRECTIVE)
    if directive not in (None, "replace", "merge", "delete"):
        raise SpecError(
            f"{path}: invalid {_DIRECTIVE} {directive!r}", hint="use replace, merge or delete"
        )
    if directive == "delete":
        return {}
    merged = {} if directive == "replace" else dict(old)
    for key, value in new.items():
        if key == _DIRECTIVE:
            continue
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = _merge_value(merged.get(key), value, key, f"{path}.{key}")
    return merged


def _merge_value(old: Any, new: Any, key: str, path: str) -> Any:
    if isinstance(new, Mapping):
        if old is not None and not isinstance(old, Mapping):
            raise SpecError(f"{path} must not be a table", hint=f"it replaces {old!r:.60}")
        return _merge_table(old or {}, new, path)
    if not isinstance(new, (list, tuple)):
        if isinstance(old, (Mapping, list)):
            kind = "table" if isinstance(old, Mapping) else "list"
            raise SpecError(
                f"{path} must be a {kind}, not {new!r:.60}", hint="use null to delete it"
            )
        return new
    if old is not None and not isinstance(old, (list, tuple)):
        raise SpecError(f"{path} must not be a list", hint=f"it replaces {old!r:.60}")
    if key in _KEYS:
        return _merge_items(list(old or ()), new, key, path)
    return [*(old or ()), *new] if key in _ADDED else list(new)


def _merge_items(
    old: list[Any], new: list[Any] | tuple[Any, ...], key: str, path: str
) -> list[Any]:
    """Merge items of the same name in place, and append the others."""
    merged = list(old)
    for index, item in enumerate(new):
        where = f"{path}[{index}]"
        if not isinstance(item, Mapping):
            raise SpecError(f"{where} must be a table", hint=f"set {' and '.join(_KEYS[key])}")
        if item == {_DIRECTIVE: "replace"}:
            merged = []
            continue
        ident = _ident(item, key, where)
        at = next((i for i, other in enumerate(merged) if _ident(other, key, where) == ident), None)
        if item.get(_DIRECTIVE) == "delete":
            if at is not None:
                del merged[at]
        elif at is None:
            merged.append(_merge_table({}, item, where))
        else:
            merged[at] = _merge_table(_drop_replaced_source(merged[at], item, key), item, where)
    return merged


def _ident(item: Mapping[str, Any], key: str, where: str) -> tuple[Any, ...]:
    missing = [name for name in _KEYS[key] if name not in item]
    if missing:
        raise SpecError(
            f"{where} has no {missing[0]}", hint=f"{missing[0]} selects the item of {key} to patch"
        )
    return tuple(item[name] for name in _KEYS[key])


def _drop_replaced_source(
    old: Mapping[str, Any], new: Mapping[str, Any], key: str
) -> Mapping[str, Any]:
    """Drop the old source of a single-source item if the patch sets another one."""
    name = _ONE_OF.get(key)
    given = {field for field, value in new.items() if value is not None} - {name}
    if name is None or not given or given & set(old):
        return old
    return {name: old[name]}


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
    """Return the pod template.

    `env` has the variables that a dialect adds for its agents. `env_fields` maps variables to pod fields.
    `container` is the container's name for kinds that require another one. Patches still use the usual name.
    `is_worker` selects the size of the worker pods, if it differs from the first pod's.
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
    """Rename the container of Windlass, and record the new name in an annotation of the pod."""
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
    """Return `Always` for a tag that can move (none or `latest`), otherwise `IfNotPresent`."""
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
    # The user ID may have no passwd entry. Libraries prefer these variables to a passwd lookup.
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
    """Return the variables whose values are in the user's Secrets."""
    return [
        {
            "name": secret.variable,
            "valueFrom": {"secretKeyRef": {"name": secret.secret, "key": secret.key}},
        }
        for secret in pod.secrets
        if isinstance(secret, SecretVariable)
    ]


def _make_hidden_env(plan: Plan, files: FileNames) -> list[Object]:
    """Return the variables whose values are in the job's own Secret."""
    return [
        {
            "name": key.removeprefix(HIDDEN_KEY),
            "valueFrom": {"secretKeyRef": {"name": plan.job_id, "key": key}},
        }
        for key in files.keys
        if key.startswith(HIDDEN_KEY)
    ]


def make_env_from(pod: PodSpec) -> list[Object]:
    """Return the Secrets whose keys all become variables."""
    whole = [secret for secret in pod.secrets if isinstance(secret, SecretVariables)]
    return [{"secretRef": {"name": secret.secret}} for secret in whole]


def make_resources(pod: PodSpec) -> Object:
    """Return the limits and requests. Requests equal the limits unless the user set lower ones."""
    limits = {
        "cpu": pod.cpus,
        "memory": pod.memory,
        "ephemeral-storage": pod.ephemeral_storage,
        pod.gpu_resource: str(pod.gpus) if pod.gpus else "",
    }
    limits = {name: value for name, value in limits.items() if value}
    keys = {"cpus": "cpu", "ephemeral_storage": "ephemeral-storage"}
    requests = {keys.get(name, name): value for name, value in pod.requests.items()}
    resources = {"limits": limits, "requests": {**limits, **requests}}
    return {name: values for name, values in resources.items() if values}


def make_pod_security(pod: PodSpec) -> Object:
    """Return a security context without root, unless the user asked for root.

    With a user ID, the pod's files belong to that user.
    """
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
    """Return the placement, service account and priority of the pods that `selector` matches."""
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
    # GPU nodes often have a taint that keeps out pods without a GPU
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

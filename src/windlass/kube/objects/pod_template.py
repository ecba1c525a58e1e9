"""Pod of a job, as a template: what the user asked for, as the API server takes it. And pod patches.

Pure. Runs under the `restricted` Pod Security standard unless a patch says otherwise. What the pod
does is up to the agent; here it gets its files, its places and its limits. A patch is a strategic
merge: it names what it changes, all else stays.

In a patch tables are merged, and null deletes. Lists whose items have a name of their own
(containers, env, volumes, mounts ...) are merged item by item, tolerations are added, every other
list is replaced. `$patch: delete` in an item and `$patch: replace` in a table mean what they mean
to kubectl.
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

# The API's own merge keys, of the types that can be in a pod's template.
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
_ONE_OF = {"volumes": "name", "env": "name"}  # items with one source each: another replaces it
_DIRECTIVE = "$patch"
Object = dict[str, Any]

_LOST_S = 10  # how long a pod stays bound to a node that does not answer
_STOP_S = 10  # what the agent has for itself after the ranks' grace
_HOST = "kubernetes.io/hostname"
_NOTHING: Mapping[str, str] = {}


def apply_patch(template: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """The template with the patch merged in."""
    return _merge_table(template, patch, "patch")


def _merge_table(old: Mapping[str, Any], new: Mapping[str, Any], path: str) -> dict[str, Any]:
    directive = new.get(_DIRECTIVE)
    if directive not in (None, "replace", "merge", "delete"):
        raise SpecError(
            f"{path}: {_DIRECTIVE} is {directive!r}", hint="it may be replace, merge or delete"
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
            raise SpecError(f"{path} must not be a table", hint=f"there it is {old!r:.60}")
        return _merge_table(old or {}, new, path)
    if not isinstance(new, (list, tuple)):
        if isinstance(old, (Mapping, list)):
            kind = "table" if isinstance(old, Mapping) else "list"
            raise SpecError(f"{path} must be a {kind}, found {new!r:.60}", hint="null deletes it")
        return new
    if old is not None and not isinstance(old, (list, tuple)):
        raise SpecError(f"{path} must not be a list", hint=f"there it is {old!r:.60}")
    if key in _KEYS:
        return _merge_items(list(old or ()), new, key, path)
    return [*(old or ()), *new] if key in _ADDED else list(new)


def _merge_items(
    old: list[Any], new: list[Any] | tuple[Any, ...], key: str, path: str
) -> list[Any]:
    """Items of the same name become one, in the place of the old; others come behind."""
    merged = list(old)
    for index, item in enumerate(new):
        where = f"{path}[{index}]"
        if not isinstance(item, Mapping):
            raise SpecError(
                f"{where} must be a table", hint=f"with {' and '.join(_KEYS[key])} in it"
            )
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
            merged[at] = _merge_table(_keep_source(merged[at], item, key), item, where)
    return merged


def _ident(item: Mapping[str, Any], key: str, where: str) -> tuple[Any, ...]:
    missing = [name for name in _KEYS[key] if name not in item]
    if missing:
        raise SpecError(
            f"{where} has no {missing[0]}", hint=f"{missing[0]} says which of the {key} is meant"
        )
    return tuple(item[name] for name in _KEYS[key])


def _keep_source(old: Mapping[str, Any], new: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An item that can have one source only loses the old one when the patch gives another."""
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

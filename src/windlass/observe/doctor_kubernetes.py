"""Checks of a cluster for Windlass jobs: connection, rights, operators, GPUs, storage, policies, DNS.

Only reads, and only what the user may read. Anything else is reported as unknown, never guessed. Checks that
need pods are in doctor_deep.py. The command line renders the results.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

from windlass.engines.cluster.submit import list_sources
from windlass.engines.dialects.dialect import Dialect, Prerequisite
from windlass.engines.engine_table import find_dialect, load_dialect
from windlass.errors import WindlassError
from windlass.kube.client.access import (
    MissingRight,
    Right,
    check_access,
    may,
    render_reader,
    render_role,
)
from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import ClusterError, Forbidden, NotFound
from windlass.kube.objects.fields import Object, labels_of, name_of
from windlass.kube.objects.inventory import (
    count_gpus,
    describe_policies,
    find_default_class,
    find_enforcer,
    find_operators,
    shares_volumes,
)
from windlass.kube.objects.kinds import (
    CRDS,
    DAEMON_SETS,
    NAMESPACES,
    NETWORK_POLICIES,
    NODES,
    PODS,
    SERVICES,
    STORAGE_CLASSES,
    ObjectKind,
)
from windlass.observe.doctor import Check
from windlass.observe.doctor_deep import check_deep
from windlass.settings import Settings

_ALL_PODS = ObjectKind(PODS.api_version, PODS.plural, PODS.name, namespaced=False)
_ALL_DEPLOYMENTS = ObjectKind("apps/v1", "deployments", "Deployment", namespaced=False)
_SYSTEM = "kube-system"
_DNS_NAMES = ("kube-dns", "coredns", "rke2-coredns-rke2-coredns", "dns-default")
_TRY_DEEP = "--deep tests it with two pods"
_LEVEL_LABEL = "pod-security.kubernetes.io/enforce"


def check_cluster(settings: Settings, *, deep: bool = False) -> Iterator[Check]:
    """Yield every check as its result arrives. Stop after the first if the cluster is unreachable.

    `deep` also runs two small pods with the image from the settings.
    """
    dialect = find_dialect(settings.engine) or load_dialect("kubernetes")
    try:
        api = connect(context=settings.context, namespace=settings.namespace, engine=dialect.name)
        started_s = time.monotonic()
        version = api.request("GET", "/version").get("gitVersion", "?")
        took_s = time.monotonic() - started_s
    except WindlassError as error:
        yield Check(
            name="cluster", state="missing", found=error.message, hint=error.hint, needed=True
        )
        return
    context = f" (context {api.context})" if api.context else ""
    text = f"Kubernetes {version} at {api.server}{context}, response time {took_s * 1000:.0f} ms"
    yield Check(name="cluster", state="ok", found=text, needed=True)
    for name, run_check in _make_checks(dialect).items():
        try:
            for check in run_check(api):
                yield replace(check, hint="") if deep and check.hint == _TRY_DEEP else check
        except Forbidden as error:  # a missing right is a result too
            yield Check(name=name, state="ok", found=f"unknown: {error.message}")
        except ClusterError as error:
            yield Check(name=name, state="warn", found=error.message, hint=error.hint)
    if deep:
        yield from check_deep(api, settings.image)


def _check_rights(api: Api, rights: Sequence[Right]) -> Iterator[Check]:
    missing = check_access(api, rights=rights)
    where = f"in namespace {api.namespace}"
    if not missing:
        yield Check(
            name="rights", state="ok", found=f"all required permissions {where}", needed=True
        )
        return
    needed = [one for one in missing if not one.right.optional]
    optional = [one for one in missing if one.right.optional]
    role = render_role({api.engine: rights}, api.namespace)
    hint = "ask a cluster administrator for the Role below"
    if needed:
        text = f"missing {where}: {_name_verbs(needed)}"
        yield Check(name="rights", state="missing", found=text, hint=hint, needed=True, more=role)
    if optional:
        lost = ", ".join(dict.fromkeys(one.right.purpose for one in optional))
        text = f"missing {where}, not needed to run: {_name_verbs(optional)}; without: {lost}"
        more = "" if needed else role
        yield Check(name="more rights", state="warn", found=text, hint=hint, more=more)


def _name_verbs(missing: Sequence[MissingRight]) -> str:
    verbs: dict[str, list[str]] = {}
    for one in missing:
        verbs.setdefault(one.right.resource, []).append(one.verb)
    return ", ".join(f"{resource} ({' '.join(names)})" for resource, names in verbs.items())


def _check_namespace(api: Api) -> Iterator[Check]:
    """Check the namespace and the label with its Pod Security level."""
    safe = "our pods meet the strictest level, restricted"
    try:
        body = api.get(NAMESPACES, api.namespace)
    except NotFound:
        yield Check(
            name="namespace",
            state="missing",
            found=f"namespace {api.namespace} not found",
            hint=f"run `kubectl create namespace {api.namespace}`, or choose one with --namespace",
            needed=True,
        )
        return
    except Forbidden:
        yield Check(name="namespace", state="ok", found=f"{api.namespace} (may not be read)")
        yield Check(name="pod security", state="ok", found=f"level unknown; {safe}")
        return
    yield Check(name="namespace", state="ok", found=api.namespace)
    level = labels_of(body).get(_LEVEL_LABEL)
    text = f"level {level}" if level else "no level set: any pod may run"
    yield Check(name="pod security", state="ok", found=f"{text}; {safe}")


def _check_operators(api: Api) -> Iterator[Check]:
    groups: list[Object] = api.request("GET", "/apis").get("groups") or []
    try:
        crds = api.list(CRDS)
    except Forbidden:
        crds = []
    try:
        deployments = api.list(_ALL_DEPLOYMENTS)
    except Forbidden:
        deployments = []
    installed, absent = find_operators(groups, crds, deployments)
    for name, versions in installed.items():
        yield Check(name=name, state="ok", found=versions)
    if absent:
        text = f"not installed: {', '.join(absent)} (the engine kubernetes needs none)"
        yield Check(name="operators", state="ok", found=text)


def _check_runtimes(api: Api, needed: Prerequisite) -> Iterator[Check]:
    """Check the objects that jobs are made from. Reading cluster-wide ones requires more than a Role."""
    own, names = needed.sources[0], list_sources(api, needed)
    available = f"available: {', '.join(names)}" if names else "none found"
    for kind in needed.sources:
        if not kind.namespaced and not may(api, "get", kind.plural, group=kind.group):
            yield Check(
                name="runtimes",
                state="warn",
                found=f"you may not get {kind.plural}; {available}",
                hint=f"choose a {own.name} of namespace {api.namespace} with --runtime, or ask an admin of "
                "the cluster for the ClusterRole below",
                more=render_reader(kind),
            )
            return
    hint = "" if names else f"ask a cluster administrator for a {own.name}"
    yield Check(name="runtimes", state="ok" if names else "warn", found=available, hint=hint)


def _check_nodes(api: Api) -> Iterator[Check]:
    try:
        nodes = api.list(NODES)
    except Forbidden as error:
        text = f"unknown, including free resources: {error.message}"
        yield Check(name="nodes", state="ok", found=text)
        return
    try:
        pods = api.list(_ALL_PODS)
    except Forbidden:
        pods = None
    yield from _describe_nodes(nodes, pods)


def _describe_nodes(nodes: Sequence[Object], pods: Sequence[Object] | None) -> Iterator[Check]:
    counts = count_gpus(nodes, pods or ())
    ready = f"{counts.num_ready} of {len(nodes)} ready for pods"
    yield Check(name="nodes", state="ok" if counts.num_ready else "warn", found=ready)
    if not counts.gpus:
        yield Check(name="gpus", state="ok", found="none: no node offers any")
        return
    for resource, gpus in counts.gpus.items():
        free = f"{gpus.num_free} free of {gpus.num_total}, at most {gpus.most_free} on one node"
        if pods is None:
            free = f"{gpus.num_total}; the number of free ones is unknown: listing all pods is not allowed"
        text = f"{resource}: {free}, on {gpus.num_nodes} nodes"
        yield Check(name="gpus", state="ok" if gpus.num_free else "warn", found=text)


def _check_storage(api: Api) -> Iterator[Check]:
    classes = api.list(STORAGE_CLASSES)
    default = find_default_class(classes)
    if default is None:
        others = ", ".join(map(name_of, classes)) or "none"
        hint = "claims must name a class; ask an admin which one to use"
        text = f"no default storage class (available: {others})"
        yield Check(name="storage", state="warn", found=text, hint=hint)
        return
    provisioner = str(default.get("provisioner", "?"))
    shared = {
        True: "one claim can be used by all nodes (ReadWriteMany)",
        False: "a claim can be used by one node at a time: no ReadWriteMany",
        None: "it is unknown whether all nodes can use one claim (ReadWriteMany)",
    }[shares_volumes(provisioner)]
    text = f"default class {name_of(default)} ({provisioner}); {shared}"
    yield Check(name="storage", state="ok", found=text)


def _check_policies(api: Api) -> Iterator[Check]:
    inside = describe_policies(api.list(NETWORK_POLICIES))
    try:
        enforcer = find_enforcer([name_of(s) for s in api.list(DAEMON_SETS, namespace=_SYSTEM)])
    except Forbidden:
        enforcer = ""
    known = f"enforced by {enforcer}" if enforcer else "enforcement is unknown"
    hint = "" if enforcer else _TRY_DEEP
    yield Check(name="network policy", state="ok", found=f"{known}; {inside}", hint=hint)


def _check_dns(api: Api) -> Iterator[Check]:
    services = [s for s in api.list(SERVICES, namespace=_SYSTEM) if name_of(s) in _DNS_NAMES]
    if not services:
        text = f"no service {' or '.join(_DNS_NAMES)} in {_SYSTEM}"
        yield Check(name="dns", state="ok", found=f"unknown: {text}", hint=_TRY_DEEP)
        return
    address = services[0].get("spec", {}).get("clusterIP", "?")
    yield Check(name="dns", state="ok", found=f"service {name_of(services[0])} at {address}")


def _make_checks(dialect: Dialect) -> Mapping[str, Callable[[Api], Iterator[Check]]]:
    needed = dialect.prerequisite
    own = {"runtimes": partial(_check_runtimes, needed=needed)} if needed else {}
    return {
        "namespace": _check_namespace,
        "rights": partial(_check_rights, rights=dialect.rights),
        **own,
        "operators": _check_operators,
        "nodes": _check_nodes,
        "storage": _check_storage,
        "network policy": _check_policies,
        "dns": _check_dns,
    }

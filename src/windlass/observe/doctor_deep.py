"""Deep check of a cluster: two small pods test it, and their findings become checks.

The objects are a suspended Indexed Job of two pods, a headless Service and a NetworkPolicy. The pods are
as restricted as those of jobs and need no more rights. They run `probe.py`, which prints its findings
as JSON. The policy closes one port on purpose. If the port can still be reached, the cluster does not
enforce policies.

`check_deep` waits with a deadline, reads the first pod's clock through port-forward, and always deletes
the objects. `describe_findings` and the functions that render objects perform no I/O.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from windlass import names
from windlass.engines.dialects.kubernetes import INDEX_VARIABLE, KUBERNETES
from windlass.errors import WindlassError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.diagnosis.blocker import IMAGE_PULL, Blocker
from windlass.kube.objects.fields import name_of
from windlass.kube.objects.kinds import EVENTS, NETWORK_POLICIES, PODS, SERVICES
from windlass.kube.objects.manifests import make_owner
from windlass.observe import probe
from windlass.observe.doctor import Check
from windlass.waiting import wait_until

LABEL = "windlass.dev/doctor"
_DEADLINE_S = 180
_KEPT_S = 60
_USER = 1000
_RESOURCES = {"cpu": "500m", "memory": "1Gi"}

Object = dict[str, Any]
Finding = Mapping[str, Any]

_SLOW_DNS_S = 5.0
_MAX_SKEW_S = 1.0
_TIMEOUT_S = 150.0
_CLOCK_TIMEOUT_S = 10.0
_PULL_TRIES_S = 15.0
_NUM_PINGS = 5


def render_job(name: str, image: str) -> Object:
    """Render a suspended Job, so that its Service and policies exist before its pods. The Job expires."""
    pod = _render_pod(name, image)
    return {
        "apiVersion": KUBERNETES.kind.api_version,
        "kind": KUBERNETES.kind.name,
        "metadata": _metadata(name),
        "spec": {
            "suspend": True,
            "completions": 2,
            "parallelism": 2,
            "completionMode": "Indexed",
            "backoffLimit": 0,
            "activeDeadlineSeconds": _DEADLINE_S,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": _labels(name)}, "spec": pod},
        },
    }


def _render_pod(name: str, image: str) -> Object:
    hosts = [f"{name}-{index}.{name}" for index in (0, 1)]
    source = Path(probe.__file__).read_text()
    container = {
        "name": names.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-c", source, f"$({INDEX_VARIABLE})", *hosts],
        "env": [{"name": "HOME", "value": "/tmp"}, {"name": "PYTHONUNBUFFERED", "value": "1"}],  # noqa: S108
        "resources": {"requests": _RESOURCES, "limits": _RESOURCES},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
    }
    return {
        "restartPolicy": "Never",
        "subdomain": name,
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": 1,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {LABEL: name}},
            }
        ],
        "containers": [container],
    }


def render_service(name: str, owner: Object) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(name, owner),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": {LABEL: name},
            "ports": [{"name": "probe", "port": probe.PORT}],
        },
    }


def render_policies(name: str, owner: Object, *, egress: bool) -> list[Object]:
    """Render policies that open the ports above `CLOSED_PORT` between the pods, and egress if set.

    Ingress and egress are separate objects, because some firewalls apply the egress rules of a combined
    policy to ingress, too.
    """
    peers = [{"podSelector": {"matchLabels": {LABEL: name}}}]
    ports = [{"protocol": "TCP", "port": probe.CLOSED_PORT + 1, "endPort": 65535}]
    into = {"policyTypes": ["Ingress"], "ingress": [{"from": peers, "ports": ports}]}
    policies = [_render_policy(name, name, owner, into)]
    if egress:
        dns = [{"protocol": protocol, "port": 53} for protocol in ("UDP", "TCP")]
        out = {"policyTypes": ["Egress"], "egress": [{"to": peers}, {"ports": dns}]}
        policies.append(_render_policy(f"{name}-out", name, owner, out))
    return policies


def _render_policy(policy: str, name: str, owner: Object, rules: Object) -> Object:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {**_metadata(name, owner), "name": policy},
        "spec": {"podSelector": {"matchLabels": {LABEL: name}}, **rules},
    }


def _labels(name: str) -> dict[str, str]:
    return {LABEL: name, names.LABEL_MANAGED_BY: "windlass"}


def _metadata(name: str, owner: Object | None = None) -> Object:
    owners = {"ownerReferences": [owner]} if owner else {}
    return {"name": name, "labels": _labels(name), **owners}


def describe_findings(
    findings: Mapping[int, Finding], *, python: str, torch: str
) -> Iterator[Check]:
    """Yield one check per finding. `python` and `torch` are the client's own versions."""
    if errors := [str(finding["error"]) for finding in findings.values() if finding.get("error")]:
        yield Check(
            name="between pods",
            state="missing",
            found=errors[0],
            hint="pods must resolve each other's names and reach each other's ports; check the namespace's "
            "NetworkPolicies and the cluster's DNS",
        )
    both = [finding for finding in findings.values() if "trip_s" in finding]
    if both:
        yield _check_dns(both)
        yield _check_port(both)
        yield _check_clocks(both)
        yield from _check_policy(both)
    yield from _check_python(findings, python)
    yield from _check_torch(findings, torch)


def _check_dns(both: list[Finding]) -> Check:
    wait_s = max(float(finding["dns_wait_s"]) for finding in both)
    once_s = max(float(finding["dns_s"]) for finding in both)
    text = f"names known {wait_s:.1f} s after the pods' start; {once_s * 1000:.1f} ms per lookup"
    if wait_s > _SLOW_DNS_S:
        hint = "the cluster's DNS is slow to publish names; torchrun waits for it, but Windlass does not"
        return Check(name="pods' dns", state="warn", found=text, hint=hint)
    return Check(name="pods' dns", state="ok", found=text)


def _check_port(both: list[Finding]) -> Check:
    trip_s = min(float(finding["trip_s"]) for finding in both)
    text = f"open between the pods, {trip_s * 1e6:.0f} µs per round trip"
    return Check(name=f"port {probe.PORT}", state="ok", found=text)


def _check_clocks(both: list[Finding]) -> Check:
    skew_s = max(abs(float(finding["skew_s"])) for finding in both)
    text = f"{skew_s * 1000:.1f} ms apart"
    if skew_s > _MAX_SKEW_S:
        hint = "certificates and log times rely on clocks: ask an admin to sync the nodes with NTP"
        return Check(name="pods' clocks", state="warn", found=text, hint=hint)
    return Check(name="pods' clocks", state="ok", found=text)


def _check_policy(both: list[Finding]) -> Iterator[Check]:
    name = "policy enforced"
    seen = [f["is_enforced"] for f in both if f.get("is_enforced") is not None]
    if not seen:
        return
    if not all(seen):
        hint = "pods can reach other jobs' ports, which are authenticated; ask for a network plugin"
        text = "no: a port that no rule opens could be reached"
        yield Check(name=name, state="warn", found=text, hint=hint)
        return
    yield Check(name=name, state="ok", found="yes: a port that no rule opens was closed")


def _check_python(findings: Mapping[int, Finding], python: str) -> Iterator[Check]:
    theirs = next((str(f["python"]) for f in findings.values() if f.get("python")), "")
    if not theirs:
        return
    text = f"{theirs}, here {python}"
    if _minor(theirs) == _minor(python):
        yield Check(name="image's python", state="ok", found=text)
        return
    yield Check(
        name="image's python",
        state="warn",
        found=text,
        hint="functions sent by value will be refused: run scripts, put functions in files, or "
        f"use Python {'.'.join(theirs.split('.')[:2])} here",
    )


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _check_torch(findings: Mapping[int, Finding], torch: str) -> Iterator[Check]:
    name = "image's torch"
    finding = next((f for f in findings.values() if "torch" in f), None)
    if finding is None:
        return
    if not finding["torch"]:
        hint = "only work that uses torch needs it; choose an image that has it"
        yield Check(name=name, state="warn", found=f"none: {finding['torch_error']}", hint=hint)
        return
    here = f", here {torch}" if torch else ", none here"
    yield Check(
        name=name,
        state="ok",
        found=f"{finding['torch']}{here}; imported in {finding['import_s']:.1f} s",
    )
    yield _check_reduce([f for f in findings.values() if f.get("torch")])


def _check_reduce(findings: list[Finding]) -> Check:
    errors = [str(f["reduce_error"]) for f in findings if f.get("reduce_error")]
    rates = [float(f["bytes_per_s"]) for f in findings if f.get("bytes_per_s")]
    if errors or not rates:
        text = errors[0] if errors else "not measured"
        hint = "torch's gloo uses random ports between pods; check whether a rule blocks them"
        return Check(name="all-reduce", state="missing", found=text, hint=hint)
    text = f"{min(rates) / 1e9:.2f} GB/s (gloo, {probe.NUM_BYTES >> 20} MiB, 2 pods)"
    return Check(name="all-reduce", state="ok", found=text)


def check_deep(api: Api, image: str) -> Iterator[Check]:
    """Run the two pods and yield their findings. Takes seconds, plus the time to pull the image."""
    if not image:
        hint = "pass the image of your jobs with --image NAME:TAG"
        yield Check(name="two pods", state="missing", found="no image given", hint=hint)
        return
    name = f"windlass-doctor-{secrets.token_hex(3)}"
    try:
        yield from _run(api, name, image)
    except ClusterError as error:
        yield Check(name="two pods", state="missing", found=error.message, hint=error.hint)
    finally:
        with suppress(ClusterError):  # if the delete fails, the job's own deadlines remove it
            api.delete(KUBERNETES.kind, name)


def _run(api: Api, name: str, image: str) -> Iterator[Check]:
    started_s = time.monotonic()
    job = api.create(KUBERNETES.kind, render_job(name, image))
    owner = make_owner(KUBERNETES.kind, job)
    api.create(SERVICES, render_service(name, owner))
    for policy in render_policies(name, owner, egress=_has_egress_rules(api)):
        api.create(NETWORK_POLICIES, policy)
    api.patch(KUBERNETES.kind, name, KUBERNETES.start or {})
    clocks: list[Check] = []

    def is_over() -> bool:
        # a running container may not listen yet, so retry until it answers
        is_answered = any(clock.state != "missing" for clock in clocks)
        if not is_answered and (pod := _running_lead(api, name)):
            clocks[:] = [_check_clock(api, pod)]
        waited_s = time.monotonic() - started_s
        return _has_ended(api, name) or _is_hopeless(_blockers(api, name), waited_s)

    wait_until(is_over, timeout_s=_TIMEOUT_S, every_s=0.5)
    if not _has_ended(api, name):
        yield _describe_stuck(_blockers(api, name))
        return
    findings = _read_findings(api, name)
    users = {str(finding["uid"]) for finding in findings.values() if "uid" in finding}
    took = f"took {time.monotonic() - started_s:.0f} s"
    text = f"ran{f' as user {users.pop()}' if users else ''}, {took}, and are deleted"
    yield Check(name="two pods", state="ok", found=text)
    yield from clocks
    yield from describe_findings(
        findings, python=platform.python_version(), torch=_installed("torch")
    )


def _pods(api: Api, name: str) -> dict[int, dict[str, Any]]:
    pods = api.list(PODS, labels=f"{LABEL}={name}")
    return {index: pod for pod in pods if (index := KUBERNETES.index_of(pod)) is not None}


def _running_lead(api: Api, name: str) -> str:
    lead = _pods(api, name).get(0, {})
    return name_of(lead) if lead.get("status", {}).get("phase") == "Running" else ""


def _has_ended(api: Api, name: str) -> bool:
    return KUBERNETES.read_end(api.get(KUBERNETES.kind, name)) is not None


def _blockers(api: Api, name: str) -> list[Blocker]:
    events: list[dict[str, Any]] = []
    with suppress(Forbidden):
        events = api.list(EVENTS)
    job, pods = api.get(KUBERNETES.kind, name), list(_pods(api, name).values())
    return KUBERNETES.find_blockers(job, pods, events)


def _is_hopeless(blockers: list[Blocker], waited_s: float) -> bool:
    """Return whether waiting cannot help. This includes an image that failed several pulls."""
    return any(
        blocker.is_hopeless or (blocker.reason == IMAGE_PULL and waited_s > _PULL_TRIES_S)
        for blocker in blockers
    )


def _describe_stuck(blockers: list[Blocker]) -> Check:
    text = f"not finished after {_TIMEOUT_S:.0f} s, for an unknown reason"
    hint = "try again"
    if blockers:
        text, hint = blockers[0].message, blockers[0].hint
    return Check(name="two pods", state="missing", found=text, hint=hint)


def _has_egress_rules(api: Api) -> bool:
    policies: list[dict[str, Any]] = []
    with suppress(Forbidden):
        policies = api.list(NETWORK_POLICIES)
    return any("Egress" in (p.get("spec", {}).get("policyTypes") or ()) for p in policies)


def _check_clock(api: Api, pod: str) -> Check:
    """Connect to node 0 as a client does, and measure the difference between the two clocks."""
    name = "port-forward"
    try:
        with api.forward(pod, probe.CLOCK_PORT, timeout_s=_CLOCK_TIMEOUT_S) as peer:
            peer.settimeout(_CLOCK_TIMEOUT_S)
            trip_s, skew_s = min(_ping(peer) for _ in range(_NUM_PINGS))
    except (WindlassError, OSError) as error:
        return Check(
            name=name,
            state="missing",
            found=f"does not work: {str(error).splitlines()[0]}",
            hint="live logs and results need it: allow get and create on pods/portforward, and check that no "
            "proxy blocks websockets",
        )
    ahead = f"{abs(skew_s) * 1000:.0f} ms {'ahead of' if skew_s >= 0 else 'behind'} ours"
    text = f"works, {trip_s * 1000:.1f} ms per round trip; the pod's clock is {ahead}"
    if abs(skew_s) > _MAX_SKEW_S + trip_s:
        hint = "certificates and log times rely on clocks: sync this machine and the nodes with NTP"
        return Check(name=name, state="warn", found=text, hint=hint)
    return Check(name=name, state="ok", found=text)


def _ping(peer: socket.socket) -> tuple[float, float]:
    """Return the round-trip time, and how far the other clock is ahead."""
    sent_s = time.time()
    peer.sendall(b"?")
    data = b""
    while len(data) < 8:
        chunk = peer.recv(8 - len(data))
        if not chunk:
            raise ConnectionError("the pod closed the connection")
        data += chunk
    trip_s = time.time() - sent_s
    return trip_s, float(struct.unpack("!d", data)[0]) - sent_s - trip_s / 2


def _read_findings(api: Api, name: str) -> dict[int, dict[str, Any]]:
    """Return what each pod printed, or the last line of a pod that failed."""
    findings: dict[int, dict[str, Any]] = {}
    for index, pod in _pods(api, name).items():
        lines = api.read_log(name_of(pod)).decode(errors="replace").strip().splitlines()
        marked = [line for line in lines if line.startswith(probe.MARK)]
        if marked:
            findings[index] = json.loads(marked[-1].removeprefix(probe.MARK))
        else:
            findings[index] = {"error": lines[-1] if lines else f"{name_of(pod)} printed nothing"}
    return findings


def _installed(package: str) -> str:
    with suppress(importlib.metadata.PackageNotFoundError):
        return importlib.metadata.version(package)
    return ""

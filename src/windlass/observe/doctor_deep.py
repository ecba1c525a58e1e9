"""Two small pods that try the cluster out. Deleted at the end, whatever happens.

Makes the objects of deep_pods.py, waits for them with a deadline, asks the first pod's clock through
port-forward, and hands what the pods printed to deep_findings.py. Needs no more rights than a job does.
"""

from __future__ import annotations

import importlib.metadata
import json
import platform
import secrets
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.errors import WindlassError
from windlass.kube.client.api import Api
from windlass.kube.client.api_errors import ClusterError, Forbidden
from windlass.kube.diagnosis.blocker import IMAGE_PULL, Blocker
from windlass.kube.objects.fields import name_of
from windlass.kube.objects.kinds import EVENTS, NETWORK_POLICIES, PODS, SERVICES
from windlass.kube.objects.manifests import make_owner
from windlass.observe import probe
from windlass.observe.deep_findings import describe_findings
from windlass.observe.deep_pods import LABEL, render_job, render_policies, render_service
from windlass.observe.doctor import Check
from windlass.waiting import wait_until

_TIMEOUT_S = 150.0
_CLOCK_TIMEOUT_S = 10.0
_PULL_TRIES_S = 15.0
_NUM_PINGS = 5
_MAX_SKEW_S = 1.0


def check_deep(api: Api, image: str) -> Iterator[Check]:
    """Run the two pods; their findings. Takes seconds, or as long as the image takes to be pulled."""
    if not image:
        hint = "--image NAME:TAG, the image your jobs will use"
        yield Check(name="two pods", state="missing", found="no image to try", hint=hint)
        return
    name = f"windlass-doctor-{secrets.token_hex(3)}"
    try:
        yield from _run(api, name, image)
    except ClusterError as error:
        yield Check(name="two pods", state="missing", found=error.message, hint=error.hint)
    finally:
        with suppress(ClusterError):  # then it ends and goes by its own deadlines
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
        # a container that runs may not listen yet: asked again until it answers
        is_asked = any(clock.state != "missing" for clock in clocks)
        if not is_asked and (pod := _running_lead(api, name)):
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
    """What no waiting cures; an image that still cannot be pulled after some tries will not come either."""
    return any(
        blocker.is_hopeless or (blocker.reason == IMAGE_PULL and waited_s > _PULL_TRIES_S)
        for blocker in blockers
    )


def _describe_stuck(blockers: list[Blocker]) -> Check:
    text = f"not done after {_TIMEOUT_S:.0f} s, and nothing says why"
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
    """The way a client reaches node 0, and how far its clock is from ours."""
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
            hint="live logs and results need it: the verbs get and create on pods/portforward, and no "
            "proxy in between that stops websockets",
        )
    ahead = f"{abs(skew_s) * 1000:.0f} ms {'ahead of' if skew_s >= 0 else 'behind'} ours"
    text = f"works, {trip_s * 1000:.1f} ms per round trip; the pod's clock is {ahead}"
    if abs(skew_s) > _MAX_SKEW_S + trip_s:
        hint = "certificates and log times rely on clocks: set them by NTP, here and on the nodes"
        return Check(name=name, state="warn", found=text, hint=hint)
    return Check(name=name, state="ok", found=text)


def _ping(peer: socket.socket) -> tuple[float, float]:
    """One round trip, and how far the other clock is ahead."""
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
    """What each pod printed; for one that broke, its last line."""
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

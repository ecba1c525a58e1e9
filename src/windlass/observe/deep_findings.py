"""What two probing pods found, as checks: names, ports, clocks, bandwidth, versions. Pure.

A finding is the JSON that probe.py prints; one that is missing is told as missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from windlass.observe import probe
from windlass.observe.doctor import Check

Finding = Mapping[str, Any]

_SLOW_DNS_S = 5.0
_MAX_SKEW_S = 1.0


def describe_findings(
    findings: Mapping[int, Finding], *, python: str, torch: str
) -> Iterator[Check]:
    """One check per thing; `python` and `torch` are the client's own versions."""
    if errors := [str(finding["error"]) for finding in findings.values() if finding.get("error")]:
        yield Check(
            name="between pods",
            state="missing",
            found=errors[0],
            hint="pods must find each other by name and reach each other's ports: a NetworkPolicy "
            "of the namespace, or the cluster's DNS, is in the way",
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
        hint = (
            "the cluster's DNS is slow to learn names; Windlass does not wait for it, torchrun does"
        )
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
        hint = "certificates and log times rely on clocks: ask an admin to set the nodes' by NTP"
        return Check(name="pods' clocks", state="warn", found=text, hint=hint)
    return Check(name="pods' clocks", state="ok", found=text)


def _check_policy(both: list[Finding]) -> Iterator[Check]:
    name = "policy enforced"
    seen = [f["is_enforced"] for f in both if f.get("is_enforced") is not None]
    if not seen:
        return
    if not all(seen):
        hint = "other pods can reach a job's ports; they are authenticated, but ask for a network plugin"
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
        hint="functions that travel by value will be refused: run scripts, put functions in files, or "
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
        hint = (
            "torch's gloo opens ports of its own choosing between pods: is there a rule against it?"
        )
        return Check(name="all-reduce", state="missing", found=text, hint=hint)
    text = f"{min(rates) / 1e9:.2f} GB/s (gloo, {probe.NUM_BYTES >> 20} MiB, 2 pods)"
    return Check(name="all-reduce", state="ok", found=text)

"""Checks that two probing pods produce, and the pods themselves."""

from __future__ import annotations

from typing import Any

from windlass.observe import probe
from windlass.observe.doctor import Check
from windlass.observe.doctor_deep import describe_findings, render_job, render_policies

FOUND: dict[str, Any] = {
    "python": "3.11.7",
    "uid": 1000,
    "dns_wait_s": 0.2,
    "dns_s": 0.001,
    "skew_s": -0.002,
    "trip_s": 0.00004,
    "is_enforced": True,
    "torch": "2.13.0",
    "import_s": 1.5,
    "bytes_per_s": 1.25e9,
}


def _describe(python: str = "3.11.2", **changes: Any) -> dict[str, Check]:
    finding = {**FOUND, **changes}
    found = describe_findings({0: finding, 1: finding}, python=python, torch="2.12.0")
    return {check.name: check for check in found}


def test_all_is_well() -> None:
    checks = _describe()
    assert {check.state for check in checks.values()} == {"ok"}
    assert checks["port 29500"].found == "open between the pods, 40 µs per round trip"
    assert checks["all-reduce"].found == "1.25 GB/s (gloo, 16 MiB, 2 pods)"
    assert checks["image's torch"].found == "2.13.0, here 2.12.0; imported in 1.5 s"


def test_other_minor_version_of_python_is_reported() -> None:
    check = _describe(python="3.12.1")["image's python"]
    assert check.state == "warn"
    assert "by value" in check.hint
    assert "3.11" in check.hint


def test_slow_names_skewed_clocks_open_ports() -> None:
    checks = _describe(dns_wait_s=30.1, skew_s=-2.5, is_enforced=False)
    assert checks["pods' dns"].state == "warn"
    assert checks["pods' clocks"].found == "2500.0 ms apart"
    assert checks["pods' clocks"].state == "warn"
    assert checks["policy enforced"].state == "warn"
    assert "policy enforced" not in _describe(is_enforced=None)


def test_no_torch_and_a_broken_all_reduce() -> None:
    without = _describe(torch="", torch_error="No module named 'torch'")
    assert without["image's torch"].state == "warn"
    assert "all-reduce" not in without
    broken = _describe(reduce_error="RuntimeError: connection timed out")["all-reduce"]
    assert (broken.state, broken.found) == ("missing", "RuntimeError: connection timed out")


def test_pods_that_cannot_reach_each_other() -> None:
    found = {0: {"python": "3.11.7", "error": "gaierror: Name or service not known"}}
    checks = list(describe_findings(found, python="3.11.7", torch=""))
    assert [check.name for check in checks] == ["between pods", "image's python"]
    assert checks[0].state == "missing"
    assert "DNS" in checks[0].hint


def test_pods_are_restricted_and_remove_themselves() -> None:
    spec = render_job("probe", "image:1")["spec"]
    pod = spec["template"]["spec"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert (spec["suspend"], spec["activeDeadlineSeconds"], spec["backoffLimit"]) == (True, 180, 0)
    assert spec["ttlSecondsAfterFinished"] == 60


def test_one_port_stays_closed() -> None:
    (policy,) = (body["spec"] for body in render_policies("probe", {}, egress=False))
    assert policy["policyTypes"] == ["Ingress"]
    (port,) = policy["ingress"][0]["ports"]
    assert port["port"] > probe.CLOSED_PORT
    assert port["port"] <= min(probe.CLOCK_PORT, probe.PORT, probe.STORE_PORT)
    both = render_policies("probe", {}, egress=True)
    assert [body["spec"]["policyTypes"] for body in both] == [["Ingress"], ["Egress"]]
    assert len({body["metadata"]["name"] for body in both}) == 2

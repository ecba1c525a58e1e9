"""Checks of a cluster, against a real one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from kube.users import make_kubeconfig, new_namespace

from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.client.access import render_role
from windlass.kube.client.api import Api
from windlass.kube.objects.kinds import JOBS, NETWORK_POLICIES, PODS, SERVICES
from windlass.observe.doctor import Check
from windlass.observe.doctor_kubernetes import check_cluster
from windlass.settings import read_settings

IMAGE = os.environ.get("TESTBED_IMAGE", "localhost/python:testbed")
STRICT = {"pod-security.kubernetes.io/enforce": "restricted"}


def _check(*, deep: bool = False, **flags: object) -> dict[str, Check]:
    settings = read_settings(flags=flags, environ=os.environ, start=Path.cwd())
    return {check.name: check for check in check_cluster(settings, deep=deep)}


def test_unreachable_cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    (check,) = _check().values()
    assert check.name == "cluster"
    assert check.is_fatal
    assert check.hint


@pytest.fixture(scope="module")
def admin() -> Iterator[Api]:
    with new_namespace(**STRICT) as api:
        yield api


@pytest.mark.cluster
def test_an_admin_sees_everything(admin: Api) -> None:
    found = _check(namespace=admin.namespace)
    assert "Kubernetes v" in found["cluster"].found
    assert found["rights"].state == "ok"
    assert found["pod security"].found.startswith("level restricted")
    assert "ready for pods" in found["nodes"].found
    assert {"gpus", "storage", "network policy", "dns"} <= set(found)
    assert not any(check.is_fatal for check in found.values())


@pytest.mark.cluster
def test_missing_namespace() -> None:
    check = _check(namespace="windlass-no-such")["namespace"]
    assert check.is_fatal
    assert "kubectl create namespace windlass-no-such" in check.hint


def _rules() -> list[dict[str, Any]]:
    rules: list[dict[str, Any]] = yaml.safe_load(render_role({"kubernetes": KUBERNETES.rights}))[
        "rules"
    ]
    return rules


@pytest.mark.cluster
def test_a_user_with_the_role_alone(
    admin: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_kubeconfig(admin, _rules(), tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = _check(namespace=admin.namespace)
    assert found["rights"].state == "ok"
    assert "you may not list nodes" in found["nodes"].found
    assert "unknown" in found["pod security"].found
    assert not any(check.state == "missing" for check in found.values())


@pytest.mark.cluster
def test_missing_verbs_are_named_and_the_role_is_printed(
    admin: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = [rule for rule in _rules() if rule["resources"] not in (["secrets"], ["events"])]
    path = make_kubeconfig(admin, rules, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(path))
    found = _check(namespace=admin.namespace)
    assert found["rights"].is_fatal
    assert "secrets (get create)" in found["rights"].found
    assert found["rights"].more == render_role({"kubernetes": KUBERNETES.rights}, admin.namespace)
    assert "events (list)" in found["more rights"].found
    assert "explain why a job is pending" in found["more rights"].found
    assert found["more rights"].state == "warn"


@pytest.mark.cluster
def test_two_probing_pods_leave_nothing_behind(
    admin: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This test uses only the permissions of the Role, in a restricted namespace."""
    monkeypatch.setenv("KUBECONFIG", str(make_kubeconfig(admin, _rules(), tmp_path)))
    found = _check(namespace=admin.namespace, image=IMAGE, deep=True)
    assert found["two pods"].found.startswith("ran as user 1000")
    assert found["port-forward"].state == "ok"
    assert found["port 29500"].state == "ok"
    assert found["pods' clocks"].state == "ok"
    assert "image's python" in found
    assert "image's torch" in found
    assert "between pods" not in found
    assert admin.list(JOBS) == []


@pytest.mark.cluster
def test_invalid_image_is_reported_immediately(admin: Api) -> None:
    found = _check(namespace=admin.namespace, image="localhost/No-Such:1", deep=True)
    assert found["two pods"].state == "missing"
    assert "localhost/No-Such:1" in found["two pods"].found
    assert admin.list(JOBS) == []


@pytest.mark.cluster
def test_deep_without_an_image(admin: Api) -> None:
    found = _check(namespace=admin.namespace, deep=True)
    assert "--image" in found["two pods"].hint
    for kind in (JOBS, PODS, SERVICES, NETWORK_POLICIES):
        left = [body["metadata"]["name"] for body in admin.list(kind)]
        assert [name for name in left if not name.startswith("windlass-doctor-")] == []

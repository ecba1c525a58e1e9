"""Setup of these tests: strict and plain namespaces, and users in them who have only one Role.

Everything is created with Windlass's own `Api` as the admin that KUBECONFIG names. Any cluster will do.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from cluster_space import has_account
from kube.users import make_kubeconfig

from windlass import names
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.kube.client.access import check_access
from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import NotFound
from windlass.kube.objects.kinds import (
    JOBS,
    LIMIT_RANGES,
    NAMESPACES,
    NETWORK_POLICIES,
    PODS,
    PVCS,
    RESOURCE_QUOTAS,
    SECRETS,
    SERVICES,
)
from windlass.waiting import wait_until

STEM = os.environ.get("STRICT_NAMESPACE", "windlass-strict")
ROLE = Path(__file__).parents[2] / "docs" / "engines" / "role.yaml"
KINDS = (JOBS, PODS, SERVICES, SECRETS, NETWORK_POLICIES, PVCS)
WAIT_S = 120.0

QUOTA = {"pods": "10", "limits.cpu": "16", "limits.memory": "8Gi", "count/jobs.batch": "20"}
LIMITS = {
    "type": "Container",
    "default": {"cpu": "1", "memory": "1Gi"},
    "defaultRequest": {"cpu": "100m", "memory": "256Mi"},
    "max": {"cpu": "2", "memory": "3Gi"},
}

Object = dict[str, Any]


def wait_for(is_so: Callable[[], bool], what: str, timeout_s: float = WAIT_S) -> None:
    assert wait_until(is_so, timeout_s=timeout_s), f"after {timeout_s:g} s still not: {what}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """One namespace, accessed as its admin, and the image of its jobs."""

    api: Api
    image: str

    def settings(self, kubeconfig: str) -> dict[str, str]:
        """Return the variables that direct every job of a test to this namespace, as that user."""
        return {
            "KUBECONFIG": kubeconfig,
            "WINDLASS_ENGINE": "kubernetes",
            "WINDLASS_NAMESPACE": self.api.namespace,
            "WINDLASS_IMAGE": self.image,
            "WINDLASS_GRACE": "1",
        }

    def left(self, job_id: str = "") -> list[str]:
        """Return all objects of one job, or of all jobs."""
        labels = names.LABEL_JOB + (f"={job_id}" if job_id else "")
        return [
            f"{kind.plural}/{found['metadata']['name']}"
            for kind in KINDS
            for found in self.api.list(kind, labels=labels)
        ]

    def wait_for_nothing(self, job_id: str = "") -> None:
        wait_for(lambda: not self.left(job_id), f"nothing left of {job_id or 'any job'}")

    def clean(self) -> None:
        """Delete everything a test has left, and check that nothing remains."""
        for kind in KINDS:  # every object, because what kubectl applied has no owner
            for thing in self.api.list(kind, labels=names.LABEL_JOB):
                path = kind.path(namespace=self.api.namespace, name=thing["metadata"]["name"])
                grace = {"gracePeriodSeconds": 0} if kind is PODS else {}
                with suppress(NotFound):
                    body = {"propagationPolicy": "Background", **grace}
                    self.api.request("DELETE", path, body=body)
        self.wait_for_nothing()

    def add_user(self, folder: Path, rules: list[Object] | None = None) -> User:
        """Return a new user with these rules or the documented Role, once the rules are in effect."""
        given = read_rules() if rules is None else rules
        folder.mkdir(parents=True, exist_ok=True)
        path = make_kubeconfig(self.api, given, folder)
        api = connect(namespace=self.api.namespace, environ={"KUBECONFIG": str(path)})
        missing = _find_lacking(given)

        def is_known() -> bool:
            return {one.name for one in check_access(api, rights=KUBERNETES.rights)} == missing

        wait_for(is_known, f"the user lacks {missing or 'nothing'}")
        return User(api=api, kubeconfig=str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """A user with a kubeconfig."""

    api: Api
    kubeconfig: str

    @property
    def name(self) -> str:
        """The user's name for the API server."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        answer = self.api.request("POST", path, body=review)
        return str(answer["status"]["userInfo"]["username"])


def read_rules() -> list[Object]:
    """Return the rules of the Role in the docs."""
    rules: list[Object] = yaml.safe_load(ROLE.read_text())["rules"]
    return rules


def without_right(verb: str, resource: str) -> list[Object]:
    """Return the documented rules without one verb."""
    found = []
    for rule in read_rules():
        if resource in rule["resources"]:
            rule = {**rule, "verbs": [one for one in rule["verbs"] if one != verb]}
        if rule["verbs"]:
            found.append(rule)
    return found


def _find_lacking(rules: list[Object]) -> set[str]:
    granted = {
        (resource, verb)
        for rule in rules
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    return {
        f"{verb} {right.resource}"
        for right in KUBERNETES.rights
        for verb in right.verbs
        if (right.resource, verb) not in granted
    }


@contextmanager
def open_ground(image: str, *, is_strict: bool, kind: str = "") -> Iterator[Ground]:
    """Open a namespace with restricted Pod Security. A strict one has all other restrictions as well."""
    name = "-".join(part for part in (STEM, kind, secrets.token_hex(4)) if part)
    api = connect(namespace=name)
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    try:
        wait_for(lambda: has_account(api), f"{name} has its service account")
        if is_strict:
            _close(api)
        yield Ground(api=api, image=image)
    finally:
        api.delete(NAMESPACES, name)


def _close(api: Api) -> None:
    api.create(RESOURCE_QUOTAS, {"metadata": {"name": "team"}, "spec": {"hard": QUOTA}})
    api.create(LIMIT_RANGES, {"metadata": {"name": "team"}, "spec": {"limits": [LIMITS]}})
    denied = {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    api.create(NETWORK_POLICIES, {"metadata": {"name": "deny-all"}, "spec": denied})
    # a quota rejects everything until its usage has been counted
    wait_for(lambda: _is_counted(api.get(RESOURCE_QUOTAS, "team")), "the quota is counted")


def _is_counted(quota: Mapping[str, Any]) -> bool:
    return set(quota.get("status", {}).get("used", {})) == set(QUOTA)


def make_project(folder: Path) -> Path:
    """Create a project that contains only the work of these tests."""
    folder.mkdir()
    (folder / "windlass.toml").touch()
    for name in ("training.py", "work.py"):
        shutil.copy(Path(__file__).with_name(name), folder / name)
    return folder

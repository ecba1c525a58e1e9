"""Temporary namespaces on a real cluster, and users in them who have one Role and no other rights."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster_space import has_account
from kube.api_server import write_kubeconfig
from waits import wait_for

from windlass.kube.client.api import Api, connect
from windlass.kube.client.kubeconfig import read_target
from windlass.kube.objects.kinds import NAMESPACES, SERVICE_ACCOUNTS, ObjectKind

_ROLES = ObjectKind("rbac.authorization.k8s.io/v1", "roles", "Role")
_BINDINGS = ObjectKind("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")


@contextmanager
def new_namespace(**labels: str) -> Iterator[Api]:
    """Yield an admin API in a fresh namespace in which pods can be created.

    The namespace is deleted afterwards, without waiting for it.
    """
    name = f"windlass-see-{secrets.token_hex(4)}"
    api = connect(namespace=name)
    api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    try:
        wait_for(lambda: has_account(api), f"the default account of {name} exists")
        yield api
    finally:
        assert api.delete(NAMESPACES, name)


def make_user(api: Api, rules: list[dict[str, Any]]) -> str:
    """Return a token of a new service account with these rules, once the rules are in effect."""
    name = f"user-{secrets.token_hex(3)}"
    api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}})
    api.create(_ROLES, {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": api.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    api.create(_BINDINGS, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
    # the API server's caches do not know a new Role immediately
    wait_for(
        lambda: all(_is_allowed(api, name, rule) for rule in rules), "the user has the rights", 30
    )
    path = SERVICE_ACCOUNTS.path(namespace=api.namespace, name=name, part="token")
    token: str = api.request("POST", path, body={"spec": {}})["status"]["token"]
    return token


def _is_allowed(api: Api, name: str, rule: dict[str, Any]) -> bool:
    resource, _, part = rule["resources"][0].partition("/")
    attributes = {
        "namespace": api.namespace,
        "verb": rule["verbs"][0],
        "group": rule["apiGroups"][0],
        "resource": resource,
        "subresource": part,
        "name": rule.get("resourceNames", [""])[0],
    }
    user = f"system:serviceaccount:{api.namespace}:{name}"
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": user, "resourceAttributes": attributes},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return bool(api.request("POST", path, body=review)["status"]["allowed"])


def make_kubeconfig(api: Api, rules: list[dict[str, Any]], folder: Path) -> Path:
    """Write a kubeconfig of a new service account that has these rules in the namespace."""
    token = make_user(api, rules)
    here = read_target(environ=os.environ)
    authority = base64.b64encode(here.ca_pem).decode()
    options = {"certificate-authority-data": authority}
    return write_kubeconfig(folder, server=here.server, user={"token": token}, **options)

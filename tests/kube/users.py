"""Namespaces of a test's own on a real cluster, and users in them who have one Role and nothing else."""

from __future__ import annotations

import base64
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kube.api_server import write_kubeconfig

from windlass.kube.api import Api, connect
from windlass.kube.kinds import NAMESPACES, SERVICE_ACCOUNTS, ObjectKind
from windlass.kube.kubeconfig import read_target

_ROLES = ObjectKind("rbac.authorization.k8s.io/v1", "roles", "Role")
_BINDINGS = ObjectKind("rbac.authorization.k8s.io/v1", "rolebindings", "RoleBinding")


@contextmanager
def new_namespace(**labels: str) -> Iterator[Api]:
    """The admin in a fresh namespace; deleting it is left to the cluster."""
    name = f"windlass-see-{secrets.token_hex(4)}"
    api = connect(namespace=name)
    api.create(NAMESPACES, {"metadata": {"name": name, "labels": labels}})
    try:
        yield api
    finally:
        assert api.delete(NAMESPACES, name)


def make_kubeconfig(api: Api, rules: list[dict[str, Any]], folder: Path) -> Path:
    """A kubeconfig of a new service account that has these rules in the namespace."""
    name = f"user-{secrets.token_hex(3)}"
    api.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}})
    api.create(_ROLES, {"metadata": {"name": name}, "rules": rules})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": api.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": name}
    api.create(_BINDINGS, {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]})
    path = SERVICE_ACCOUNTS.path(namespace=api.namespace, name=name, part="token")
    token = api.request("POST", path, body={"spec": {}})["status"]["token"]
    here = read_target(environ=os.environ)
    authority = base64.b64encode(here.ca_pem).decode()
    options = {"certificate-authority-data": authority}
    return write_kubeconfig(folder, server=here.server, user={"token": token}, **options)

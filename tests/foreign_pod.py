"""A pod that is no part of any job, as anybody who may create pods can create it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass import names


def make_foreign_pod(
    name: str, image: str, program: str, *, env: Mapping[str, str] | None = None, **metadata: Any
) -> dict[str, Any]:
    """It runs `program` in Python, meets the restricted standard, and has whatever metadata is given."""
    container = {
        "name": names.CONTAINER,
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", program],
        "env": [{"name": key, "value": value} for key, value in (env or {}).items()],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
    }
    security = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    return {
        "metadata": {"name": name, **metadata},
        "spec": {
            "containers": [container],
            "securityContext": security,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 0,
        },
    }

"""A project in a namespace of a real cluster for attacks on it, a clean end, and an attacker's pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cluster_space import Space
from waits import wait_for

import windlass as wl
from windlass import names
from windlass.kube.kinds import JOBS, PODS

WORK = """
import os, time

def hello():
    print("hello from", os.environ["RANK"], flush=True)
    return int(os.environ["RANK"])

def stay():
    print("up", flush=True)
    time.sleep(600)
"""


@contextmanager
def working_in(space: Space, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Space]:
    """A project with a few functions, submitted to the space by default; nothing stays."""
    folder.mkdir()
    (folder / "windlass.toml").touch()
    (folder / "work.py").write_text(WORK)
    monkeypatch.chdir(folder)
    for name, value in space.settings.items():
        monkeypatch.setenv(name, value)
    try:
        yield space
    finally:
        for job in space.api.list(JOBS, labels=names.LABEL_JOB):
            space.api.delete(JOBS, job["metadata"]["name"])
        for pod in space.api.list(PODS, labels=names.LABEL_JOB):
            space.api.delete(PODS, pod["metadata"]["name"], grace_s=0)
        wait_for(lambda: not space.find_objects(names.LABEL_JOB), "nothing is left")


def wait_until_up(job: wl.Job) -> None:
    """Until it has said so, which it does once its ranks run."""
    wait_for(lambda: any(line.text == "up" for line in job.logs()), f"{job.id} is up")


def make_attackers_pod(
    space: Space, name: str, program: str, *, env: dict[str, str], **metadata: Any
) -> dict[str, Any]:
    """A pod that anybody who may create pods can create, with whatever metadata."""
    container = {
        "name": names.CONTAINER,
        "image": space.image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", program],
        "env": [{"name": key, "value": value} for key, value in env.items()],
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

"""Prerequisites of contestants in pods: a user with only the documented Role, workers, and port-forwards.

The Role is the file in the documentation. This module creates everything with kubectl, in namespaces that the
benchmark deletes at the end. Every wait has a deadline.
"""

from __future__ import annotations

import json
import re
import select
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

LIMIT_S = 120.0
ROLE = Path(__file__).parent.parent / "docs" / "engines" / "role.yaml"
MONARCH_PORT = 26600
_USER = "bench-user"
_FORWARDING = re.compile(r"Forwarding from 127\.0\.0\.1:(\d+)")
_MONARCH = f"""\
import os
from monarch.actor import run_worker_loop_forever
address = "tcp://%s:{MONARCH_PORT}@tcp://0.0.0.0:{MONARCH_PORT}" % os.environ["POD_IP"]
run_worker_loop_forever(address=address, ca="trust_all_connections")
"""
_ECHO = """\
import socket
server = socket.create_server(("0.0.0.0", 7000))
while True:
    peer, _ = server.accept()
    peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    while data := peer.recv(65536):
        peer.sendall(data)
"""

Object = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubectl:
    """kubectl in one namespace, as the user of the kubeconfig."""

    namespace: str
    kubeconfig: Path | None = None
    context: str = ""

    def make_command(self, *args: str) -> list[str]:
        user = ["--kubeconfig", str(self.kubeconfig)] if self.kubeconfig else []
        user += ["--context", self.context] if self.context else []
        return ["kubectl", *user, "--namespace", self.namespace, *args]

    def run(self, *args: str, stdin: str = "") -> str:
        done = subprocess.run(
            self.make_command(*args), input=stdin, capture_output=True, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise SystemExit(f"warm: kubectl {' '.join(args)}: {done.stderr.strip()}")
        return done.stdout


# -- the user --------------------------------------------------------------------------------------


def make_user(admin: Kubectl, folder: Path) -> Path:
    """Create a user with only the documented Role in this namespace, and return the kubeconfig."""
    admin.run("create", "serviceaccount", _USER)
    admin.run("apply", "-f", str(ROLE))
    role = json.loads(admin.run("create", "--dry-run=client", "-o", "json", "-f", str(ROLE)))
    account = f"--serviceaccount={admin.namespace}:{_USER}"
    admin.run("create", "rolebinding", _USER, f"--role={role['metadata']['name']}", account)
    token = admin.run("create", "token", _USER, "--duration=6h").strip()
    config = json.loads(admin.run("config", "view", "--raw", "--minify", "--flatten", "-o", "json"))
    config["users"] = [{"name": _USER, "user": {"token": token}}]
    config["contexts"][0]["context"].update(user=_USER, namespace=admin.namespace)
    path = folder / "kubeconfig"
    path.touch(mode=0o600)
    path.write_text(json.dumps(config))
    return path


# -- pods ------------------------------------------------------------------------------------------


def make_pods(name: str, *, image: str, num: int, source: str) -> Object:
    """Return a StatefulSet whose pods run this source, one per host."""
    labels = {"bench": name}
    where = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}
    container = {
        "name": "worker",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": ["python3", "-u", "-c", source],
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
    }
    pod = {
        "terminationGracePeriodSeconds": 1,
        "affinity": {
            "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [where]}
        },
        "containers": [container],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": name},
        "spec": {
            "serviceName": name,
            "replicas": num,
            "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def start_monarch(admin: Kubectl, *, image: str, num: int) -> list[str]:
    """Start Monarch's worker loop in pods, and return their HOST:PORT in order."""
    return [f"{ip}:{MONARCH_PORT}" for ip in _start(admin, "monarch", image, num, _MONARCH)]


def start_echo(admin: Kubectl, *, image: str) -> None:
    """Start a pod that echoes what it receives, to measure a port-forward alone."""
    _start(admin, "echo", image, 1, _ECHO)


def _start(admin: Kubectl, name: str, image: str, num: int, source: str) -> list[str]:
    pods = make_pods(name, image=image, num=num, source=source)
    admin.run("apply", "-f", "-", stdin=json.dumps(pods))
    admin.run("rollout", "status", f"statefulset/{name}", f"--timeout={LIMIT_S:g}s")
    found = [admin.run("get", "pod", f"{name}-{n}", "-o", "json") for n in range(num)]
    return [json.loads(pod)["status"]["podIP"] for pod in found]


@contextmanager
def forwarded(user: Kubectl, pod: str, port: int) -> Iterator[int]:
    """Run kubectl port-forward, and yield the local port."""
    process = subprocess.Popen(
        user.make_command("port-forward", f"pod/{pod}", f":{port}"),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        ready = select.select([process.stdout], [], [], LIMIT_S)[0]
        found = _FORWARDING.search(process.stdout.readline()) if ready else None
        if found is None:
            raise SystemExit(f"warm: kubectl port-forward to {pod} did not start")
        yield int(found[1])
    finally:
        process.kill()
        process.wait()

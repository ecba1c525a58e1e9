"""The client's requests on a real cluster: every verb, a user with few rights, and other ways to connect."""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from kube.api_server import read_exactly, write_kubeconfig
from kube.users import make_user, new_namespace

from windlass.kube.client.api import Api, connect
from windlass.kube.client.api_errors import Conflict, Forbidden, NotFound, Rejected, Unreachable
from windlass.kube.client.kubeconfig import ClusterTarget, read_target
from windlass.kube.client.transport import Transport
from windlass.kube.objects.kinds import CONFIG_MAPS, PODS, RESOURCE_QUOTAS, SECRETS, ObjectKind

pytestmark = pytest.mark.cluster

IMAGE = os.environ.get("TESTBED_IMAGE", "localhost/python:testbed")
ECHO = """
import asyncio

async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()

async def main():
    await asyncio.start_server(echo, "0.0.0.0", 7000)
    print("listening", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    with new_namespace() as api:
        yield api


@pytest.fixture(scope="module")
def pod(api: Api) -> str:
    """Yield a running pod that echoes on port 7000."""
    container = {"name": "echo", "image": IMAGE, "command": ["python3", "-c", ECHO]}
    api.create(
        PODS,
        {
            "metadata": {"name": "echo", "labels": {"app": "echo"}},
            "spec": {"terminationGracePeriodSeconds": 0, "containers": [container]},
        },
    )
    deadline = time.monotonic() + 120.0
    while b"listening" not in _read_log_if_any(api):
        assert time.monotonic() < deadline, api.get(PODS, "echo")["status"]
    return "echo"


def _read_log_if_any(api: Api) -> bytes:
    for kind, thing in api.watch(
        PODS, fields="metadata.name=echo", stop=threading.Event(), timeout_s=60.0
    ):
        statuses = thing.get("status", {}).get("containerStatuses", []) if kind != "SYNCED" else []
        if any("running" in status["state"] for status in statuses):
            return api.read_log("echo", tail_lines=10)
    return b""


def make_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"made": "here"}}, "data": data}


def test_every_verb(api: Api) -> None:
    made = api.create(CONFIG_MAPS, make_map("a", x="1"))
    assert made["metadata"]["namespace"] == api.namespace
    with pytest.raises(Conflict) as caught:
        api.create(CONFIG_MAPS, make_map("a"))
    assert caught.value.reason == "AlreadyExists"
    assert api.patch(CONFIG_MAPS, "a", {"data": {"x": None, "y": "2"}})["data"] == {"y": "2"}
    applied = api.apply(CONFIG_MAPS, make_map("b", z="3"))
    assert applied["metadata"]["managedFields"][0]["manager"] == "windlass"
    assert api.apply(CONFIG_MAPS, make_map("b", z="4"), dry_run=True)["data"] == {"z": "4"}
    assert api.get(CONFIG_MAPS, "b")["data"] == {"z": "3"}
    names = {thing["metadata"]["name"] for thing in api.list(CONFIG_MAPS, labels="made=here")}
    assert names == {"a", "b"}
    with pytest.raises(Conflict):
        api.delete(CONFIG_MAPS, "a", uid="00000000-0000-0000-0000-000000000000")
    assert api.delete(CONFIG_MAPS, "a", uid=made["metadata"]["uid"]) is True
    assert api.delete(CONFIG_MAPS, "a") is False
    assert api.delete(CONFIG_MAPS, "b") is True
    with pytest.raises(NotFound, match='configmaps "b" not found'):
        api.get(CONFIG_MAPS, "b")


def test_refusals_of_the_server(api: Api) -> None:
    with pytest.raises(Rejected, match="Invalid value"):
        api.create(CONFIG_MAPS, make_map("NOT_A_NAME"))
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {"count/secrets": "0"}}}
    api.create(RESOURCE_QUOTAS, quota)
    stop = threading.Event()
    for _, thing in api.watch(RESOURCE_QUOTAS, stop=stop, timeout_s=20.0):
        if thing.get("status", {}).get("used"):
            stop.set()
    with pytest.raises(Rejected, match="exceeded quota: q"):
        api.create(SECRETS, {"metadata": {"name": "one-too-many"}})
    assert api.delete(RESOURCE_QUOTAS, "q")
    with pytest.raises(NotFound, match="does not serve it"):
        api.list(ObjectKind("absent.example.com/v1", "things", "Thing"))


def test_watch_reports_changes(api: Api) -> None:
    stop = threading.Event()
    seen = []
    for kind, thing in api.watch(CONFIG_MAPS, labels="made=watched", stop=stop, timeout_s=30.0):
        seen.append(kind)
        labels = {"labels": {"made": "watched"}}
        if kind == "SYNCED":
            api.create(CONFIG_MAPS, {"metadata": {"name": "w", **labels}})
        elif kind == "ADDED":
            api.patch(CONFIG_MAPS, "w", {"data": {"x": "1"}})
        elif kind == "MODIFIED":
            assert thing["data"] == {"x": "1"}
            api.delete(CONFIG_MAPS, "w")
        else:
            stop.set()
    assert seen == ["SYNCED", "ADDED", "MODIFIED", "DELETED"]


def test_lists_come_in_pages(api: Api) -> None:
    for index in range(3):
        api.create(CONFIG_MAPS, make_map(f"page-{index}"))
    path = CONFIG_MAPS.path(namespace=api.namespace)
    page = api.request("GET", path, params={"limit": 1, "labelSelector": "made=here"})
    assert page["metadata"]["continue"]
    assert len(api.list(CONFIG_MAPS, labels="made=here")) == 3
    for index in range(3):
        api.delete(CONFIG_MAPS, f"page-{index}")


def test_log(api: Api, pod: str) -> None:
    assert api.read_log(pod) == b"listening\n"
    assert api.read_log(pod, container="echo", limit_bytes=3) == b"lis"
    assert api.read_log(pod, timestamps=True).endswith(b"Z listening\n")
    with pytest.raises(Rejected, match="container nope is not valid"):
        api.read_log(pod, container="nope")


def test_forward(api: Api, pod: str) -> None:
    num_bytes = 8 << 20
    with api.forward(pod, 7000) as sock:
        sock.settimeout(20.0)
        writer = threading.Thread(target=sock.sendall, args=(b"x" * num_bytes,), daemon=True)
        writer.start()
        assert read_exactly(sock, num_bytes) == b"x" * num_bytes
        writer.join(10.0)
    with api.forward(pod, 7001) as sock:
        sock.settimeout(20.0)
        assert sock.recv(1) == b""
    with pytest.raises(NotFound, match="absent"):
        api.forward("absent", 7000)


def write_cluster(folder: Path, *, user: dict[str, Any], **cluster: object) -> Path:
    """Write a kubeconfig of the tests' cluster with another user or another connection."""
    here = read_target(environ=os.environ)
    authority = base64.b64encode(here.ca_pem).decode()
    options = {"certificate-authority-data": authority, **cluster}
    return write_kubeconfig(folder, server=here.server, user=user, **options)


def test_user_with_few_rights(api: Api, pod: str, tmp_path: Path) -> None:
    token = make_user(api, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list"]}])
    path = write_cluster(tmp_path, user={"token": token})
    user = connect(namespace=api.namespace, environ={"KUBECONFIG": str(path)})
    assert [thing["metadata"]["name"] for thing in user.list(PODS)] == [pod]
    place = f"in namespace {api.namespace}"
    with pytest.raises(Forbidden, match=f"you may not create secrets {place}"):
        user.create(SECRETS, {"metadata": {"name": "x"}})
    with pytest.raises(Forbidden, match=f"you may not watch pods {place}"):
        list(user.watch(PODS, stop=threading.Event(), timeout_s=20.0))
    with pytest.raises(Forbidden, match=f"you may not (get|create) pods/portforward {place}"):
        user.forward(pod, 7000)
    with pytest.raises(Forbidden, match=f"you may not get pods/log {place}"):
        user.read_log(pod)


def test_service_account_of_a_pod(api: Api, tmp_path: Path) -> None:
    here = read_target(environ=os.environ)
    token = make_user(api, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    for name, content in (
        ("token", token),
        ("namespace", api.namespace),
        ("ca.crt", here.ca_pem.decode()),
    ):
        (tmp_path / name).write_text(content)
    url = urlsplit(here.server)
    environ = {
        "HOME": str(tmp_path),
        "KUBERNETES_SERVICE_HOST": url.hostname or "",
        "KUBERNETES_SERVICE_PORT": str(url.port or 443),
    }
    inside = Api(Transport(read_target(environ=environ, account=tmp_path), environ))
    assert inside.namespace == api.namespace
    inside.list(PODS)
    with pytest.raises(Forbidden, match="you may not get pods"):
        inside.get(PODS, "echo")


def test_plugin_returns_a_token_or_a_certificate(api: Api, tmp_path: Path) -> None:
    here = read_target(environ=os.environ)
    token = make_user(api, [{"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]}])
    answers = [{"token": token}]
    if here.user.certificate_pem:
        certificate, key = here.user.certificate_pem.decode(), here.user.key_pem.decode()
        answers.append({"clientCertificateData": certificate, "clientKeyData": key})
    for status in answers:
        plugin = tmp_path / "plugin"
        answer = json.dumps({"kind": "ExecCredential", "status": status})
        plugin.write_text(f"#!{sys.executable}\nprint({answer!r})\n")
        plugin.chmod(0o755)
        user = {"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "./plugin"}}
        path = write_cluster(tmp_path, user=user)
        connect(namespace=api.namespace, environ={"KUBECONFIG": str(path)}).list(PODS)


def _admin(here: ClusterTarget) -> dict[str, Any]:
    """Return the tests' own user as a kubeconfig contains it."""
    parts = {
        "token": here.user.token,
        "client-certificate-data": base64.b64encode(here.user.certificate_pem).decode(),
        "client-key-data": base64.b64encode(here.user.key_pem).decode(),
    }
    return {name: value for name, value in parts.items() if value}


def test_authority_of_another_cluster(tmp_path: Path) -> None:
    here = read_target(environ=os.environ)
    if not here.user.certificate_pem:
        pytest.skip(
            "needs a kubeconfig with a client certificate: it stands in for a wrong authority"
        )
    wrong = base64.b64encode(here.user.certificate_pem).decode()
    path = write_cluster(tmp_path, user={}, **{"certificate-authority-data": wrong})
    api = connect(environ={"KUBECONFIG": str(path)})
    started_s = time.monotonic()
    with pytest.raises(Unreachable, match="cannot be trusted") as caught:
        api.list(PODS)
    assert time.monotonic() - started_s < 5.0, "no try can help"
    assert "certificate authority of another cluster" in caught.value.hint
    with pytest.raises(Unreachable, match="cannot be trusted"):
        api.forward("a", 7000)


def test_names_in_the_certificate(api: Api, pod: str, tmp_path: Path) -> None:
    here = read_target(environ=os.environ)
    for name, is_right in (("kubernetes.default.svc", True), ("absent.example.com", False)):
        path = write_cluster(tmp_path, user=_admin(here), **{"tls-server-name": name})
        other = connect(namespace=api.namespace, environ={"KUBECONFIG": str(path)})
        if is_right:
            assert other.list(PODS)
            other.forward(pod, 7000).close()
        else:
            with pytest.raises(Unreachable, match="certificate") as caught:
                other.list(PODS)
            assert "tls-server-name" in caught.value.hint


def test_insecure_skip_tls_verify(api: Api, pod: str, tmp_path: Path) -> None:
    here = read_target(environ=os.environ)
    path = write_kubeconfig(
        tmp_path, server=here.server, user=_admin(here), **{"insecure-skip-tls-verify": True}
    )
    other = connect(namespace=api.namespace, environ={"KUBECONFIG": str(path)})
    assert other.list(PODS)
    other.forward(pod, 7000).close()


def test_proxy(api: Api, pod: str, tmp_path: Path) -> None:
    here = read_target(environ=os.environ)
    asked: list[str] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:
        tunnel = threading.Thread(target=_tunnel, args=(listener, asked), daemon=True)
        tunnel.start()
        proxy = f"http://me:pw@127.0.0.1:{listener.getsockname()[1]}"
        path = write_cluster(tmp_path, user=_admin(here), **{"proxy-url": proxy})
        other = connect(namespace=api.namespace, environ={"KUBECONFIG": str(path)})
        assert other.list(PODS)
        with other.forward(pod, 7000) as sock:
            sock.settimeout(10.0)
            sock.sendall(b"hello")
            assert read_exactly(sock, 5) == b"hello"
        listener.shutdown(socket.SHUT_RDWR)
        tunnel.join(10.0)
    pair = base64.b64encode(b"me:pw").decode()
    assert len(asked) == 2
    for request in asked:
        assert request.startswith(f"CONNECT {urlsplit(here.server).netloc} ")
        assert f"Basic {pair}" in request


def _tunnel(listener: socket.socket, asked: list[str]) -> None:
    """Serve as an HTTP proxy: one CONNECT per connection, then bytes in both directions."""
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            return
        request = b""
        while b"\r\n\r\n" not in request:
            request += client.recv(4096)
        asked.append(request.decode())
        host, _, port = request.split()[1].decode().rpartition(":")
        server = socket.create_connection((host, int(port)))
        client.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
        threading.Thread(target=_carry, args=(client, server), daemon=True).start()


def _carry(client: socket.socket, server: socket.socket) -> None:
    with client, server:
        back = threading.Thread(target=_copy, args=(server, client), daemon=True)
        back.start()
        _copy(client, server)
        back.join(30.0)


def _copy(source: socket.socket, sink: socket.socket) -> None:
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return

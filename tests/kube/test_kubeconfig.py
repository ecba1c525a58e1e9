"""Selection of the cluster: kubeconfigs, contexts and a pod's own account, and errors for broken files."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from kube.api_server import write_kubeconfig

from windlass.kube.client.api import connect
from windlass.kube.client.kubeconfig import ClusterTarget, ConfigError, read_target
from windlass.kube.client.transport import find_proxy


def write(path: Path, **parts: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(parts))
    return path


def make_context(name: str, **values: str) -> dict[str, Any]:
    return {"name": name, "context": {"cluster": "c", "user": "u", **values}}


def make_cluster(name: str, **values: Any) -> dict[str, Any]:
    return {"name": name, "cluster": {"server": "https://a:6443", **values}}


def read(*paths: Path, **options: Any) -> ClusterTarget:
    return read_target(
        environ={"KUBECONFIG": ":".join(map(str, paths)), "HOME": "/nowhere"}, **options
    )


def test_several_files_are_merged_and_the_first_wins(tmp_path: Path) -> None:
    first = write(
        tmp_path / "1" / "config",
        contexts=[make_context("one", namespace="n1")],
        clusters=[make_cluster("c", server="https://first:1")],
    )
    second = write(
        tmp_path / "2" / "config",
        **{"current-context": "two"},
        contexts=[make_context("two"), make_context("one", namespace="lost")],
        clusters=[make_cluster("c", server="https://second:2")],
        users=[{"name": "u", "user": {"tokenFile": "my.token"}}],
    )
    missing = tmp_path / "gone"
    found = read(missing, first, second)
    assert (found.context, found.server, found.namespace) == ("two", "https://first:1", "default")
    assert found.user.token_file == str(tmp_path / "2" / "my.token")
    assert read(first, second, context="one").namespace == "n1"
    assert read(first, second, context="one", namespace="mine").namespace == "mine"


def test_home_is_searched_last(tmp_path: Path) -> None:
    write(
        tmp_path / ".kube" / "config",
        **{"current-context": "x"},
        contexts=[make_context("x")],
        clusters=[make_cluster("c")],
        users=[{"name": "u"}],
    )
    assert read_target(environ={"HOME": str(tmp_path)}).context == "x"


def test_yaml_with_relative_paths(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_bytes(b"authority")
    path = tmp_path / "config"
    path.write_text(
        """
        current-context: x
        contexts: [{name: x, context: {cluster: c, user: u}}]
        clusters:
        - name: c
          cluster:
            server: https://a:6443/k8s/clusters/c-1/
            certificate-authority: ca.pem
            tls-server-name: real
            insecure-skip-tls-verify: true
            proxy-url: http://p:3128
        users:
        - name: u
          user: {as: boss, as-groups: [g1, g2]}
        """
    )
    found = read(path)
    assert found.server == "https://a:6443/k8s/clusters/c-1"
    assert found.ca_pem == b"authority"
    assert found.tls_server_name == "real"
    assert found.insecure
    assert find_proxy(found, {}) == "http://p:3128"
    assert found.user.impersonate == (
        ("Impersonate-User", "boss"), ("Impersonate-Group", "g1"), ("Impersonate-Group", "g2"),
    )  # fmt: skip


def test_in_a_pod(tmp_path: Path) -> None:
    for name, text in (("token", "t"), ("namespace", "mine\n"), ("ca.crt", "authority")):
        (tmp_path / name).write_text(text)
    environ = {
        "HOME": str(tmp_path),
        "KUBERNETES_SERVICE_HOST": "fd00::1",
        "KUBERNETES_SERVICE_PORT": "443",
    }
    found = read_target(environ=environ, account=tmp_path)
    assert (found.server, found.namespace) == ("https://[fd00::1]:443", "mine")
    assert found.user.token_file == str(tmp_path / "token")
    kubeconfig = write_kubeconfig(tmp_path, server="https://a:1")
    found = read_target(environ={**environ, "KUBECONFIG": str(kubeconfig)}, account=tmp_path)
    assert found.context == "here"


def test_no_kubeconfig_at_all(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no kubeconfig.*\.kube/config") as caught:
        connect(environ={"HOME": str(tmp_path)})
    assert "KUBECONFIG" in caught.value.hint


def test_an_unknown_context(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path, server="https://a:1")
    with pytest.raises(ConfigError, match="context 'hare' not found") as caught:
        read(path, context="hare")
    assert caught.value.hint == "did you mean 'here'?"


def test_no_context_is_chosen(tmp_path: Path) -> None:
    path = write(tmp_path / "config", contexts=[make_context("a"), make_context("b")])
    with pytest.raises(ConfigError, match="no context is selected") as caught:
        read(path)
    assert "a, b" in caught.value.hint


HEAD = "current-context: x\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
BAD_SERVER = HEAD + "clusters: [{name: c, cluster: {server: a.b}}]"
BAD_DATA = (
    HEAD + "clusters: [{name: c, cluster: {server: 'https://a', certificate-authority-data: '%'}}]"
)
OLD_LOGIN = (
    HEAD + "clusters: [{name: c, cluster: {server: 'https://a'}}]\n"
    "users: [{name: u, user: {auth-provider: {name: gcp}}}]"
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [1\nb: }", "is not valid YAML"),
        ("just words", "not contain a mapping"),
        ("contexts: [{context: {}}]", "`contexts` must be a list of name and context"),
        ("clusters: 3", "`clusters` must be a list"),
        (HEAD, "cluster 'c' not found"),
        (HEAD + "clusters: [{name: c, cluster: {server: 'https://a'}}]", "user 'u' not found"),
        (BAD_SERVER, "invalid server URL"),
        (BAD_DATA.replace("user: u", ""), "is not valid base64"),
        (OLD_LOGIN, "auth-provider"),
    ],
)
def test_a_broken_kubeconfig_is_explained(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert says in caught.value.message
    assert caught.value.hint
    assert caught.value.exit_code == 2


@pytest.mark.parametrize("part", ["certificate-authority-data", "client-certificate-data"])
def test_invalid_certificates(tmp_path: Path, part: str) -> None:
    garbage = base64.b64encode(b"no certificate").decode()
    is_ca = part.startswith("certificate-authority")
    path = write_kubeconfig(
        tmp_path,
        server="https://127.0.0.1:1",
        user={} if is_ca else {part: garbage},
        **({part: garbage} if is_ca else {}),
    )
    with pytest.raises(ConfigError, match="certificate"):
        connect(environ={"KUBECONFIG": str(path)}).request("GET", "/version")


@pytest.mark.parametrize(
    ("environ", "proxy"),
    [
        ({}, ""),
        ({"HTTPS_PROXY": "p:1"}, "http://p:1"),
        ({"https_proxy": "http://p:1", "NO_PROXY": "other,.example.com"}, ""),
        ({"https_proxy": "http://p:1", "NO_PROXY": "10.0.0.0/8"}, "http://p:1"),
        ({"https_proxy": "http://p:1", "NO_PROXY": "*"}, ""),
        ({"HTTP_PROXY": "http://p:1"}, ""),
    ],
)
def test_proxy_from_the_environment(tmp_path: Path, environ: dict[str, str], proxy: str) -> None:
    target = read(write_kubeconfig(tmp_path, server="https://api.example.com:6443"))
    assert find_proxy(target, environ) == proxy


def test_no_proxy_for_a_network(tmp_path: Path) -> None:
    target = read(write_kubeconfig(tmp_path, server="https://10.1.2.3:6443"))
    assert find_proxy(target, {"HTTPS_PROXY": "p:1", "NO_PROXY": "10.0.0.0/8"}) == ""


def test_unsupported_kind_of_proxy_is_refused(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path, server="https://a:1", **{"proxy-url": "socks5://me:pw@p:1"})
    with pytest.raises(ConfigError, match=r"socks5://p:1 is neither") as caught:
        connect(environ={"KUBECONFIG": str(path)})
    assert "pw" not in str(caught.value)


def test_secrets_are_not_printed(tmp_path: Path) -> None:
    path = write_kubeconfig(
        tmp_path, server="https://a:1", user={"token": "hush", "password": "hush"}
    )
    assert "hush" not in repr(read(path))

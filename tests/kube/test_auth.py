"""Exec credential plug-ins: real programs that succeed or fail in every supported way."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kube.api_server import Answer, connect_to, refuse, serve, write_kubeconfig

from windlass.kube.client.api import connect
from windlass.kube.client.api_errors import Unauthorized
from windlass.kube.client.kubeconfig import ConfigError
from windlass.kube.objects.kinds import PODS

OK = Answer(body={"metadata": {"name": "a"}})
V1 = "client.authentication.k8s.io/v1"


def write_plugin(folder: Path, code: str) -> Path:
    """Write a program that records each start in `starts` and then runs the given code."""
    path = folder / "login-plugin"
    path.write_text(
        f"#!{sys.executable}\nimport json, os, sys, pathlib\n"
        "here = pathlib.Path(__file__).parent\n"
        "(here / 'starts').open('a').write(os.environ['KUBERNETES_EXEC_INFO'] + '\\n')\n"
        "num = len((here / 'starts').read_text().splitlines())\n"
        "def say(**status): print(json.dumps({'kind': 'ExecCredential', 'status': status}))\n"
        + code
    )
    path.chmod(0o755)
    return path


def starts(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "starts").read_text().splitlines()]


def make_user(**options: Any) -> dict[str, Any]:
    return {"exec": {"apiVersion": V1, "command": "./login-plugin", **options}}


@pytest.mark.parametrize("version", ["v1", "v1beta1", "v1alpha1"])
def test_token_is_fetched_once(tmp_path: Path, version: str) -> None:
    write_plugin(tmp_path, "say(token=os.environ['WHO'] + sys.argv[1])")
    user = make_user(
        apiVersion=f"client.authentication.k8s.io/{version}",
        args=["-1"],
        env=[{"name": "WHO", "value": "me"}],
    )
    with serve(OK) as server:
        api = connect_to(server.url, tmp_path, user=user)
        threads = [threading.Thread(target=api.get, args=(PODS, "a")) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30.0)
    assert {seen.headers["Authorization"] for seen in server.seen} == {"Bearer me-1"}
    assert len(server.seen) == 8
    assert len(starts(tmp_path)) == 1


def test_refused_token_is_fetched_again(tmp_path: Path) -> None:
    write_plugin(tmp_path, "say(token=f't{num}')")
    with serve(OK, refuse(401, "Unauthorized", "no"), OK) as server:
        api = connect_to(server.url, tmp_path, user=make_user())
        api.get(PODS, "a")
        api.get(PODS, "a")
    sent = [seen.headers["Authorization"] for seen in server.seen]
    assert sent == ["Bearer t1", "Bearer t1", "Bearer t2"]


@pytest.mark.parametrize(
    ("expires", "num_starts"),
    [
        ("2001-01-01T00:00:00Z", 2),
        ("2999-01-01T00:00:00.123456789Z", 1),
        ("2999-01-01T00:00:00+02:00", 1),
    ],
)
def test_token_is_kept_until_it_expires(tmp_path: Path, expires: str, num_starts: int) -> None:
    write_plugin(tmp_path, f"say(token='t', expirationTimestamp={expires!r})")
    with serve(OK) as server:
        api = connect_to(server.url, tmp_path, user=make_user())
        api.get(PODS, "a")
        api.get(PODS, "a")
    assert len(starts(tmp_path)) == num_starts


def test_plugin_receives_the_cluster_info(tmp_path: Path) -> None:
    write_plugin(tmp_path, "say(token='t')")
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    with serve(OK) as server:
        path = write_kubeconfig(
            tmp_path,
            server=server.url,
            user=make_user(provideClusterInfo=True),
            extensions=[extension],
        )
        connect(environ={"KUBECONFIG": str(path)}).get(PODS, "a")
    (info,) = starts(tmp_path)
    assert info["apiVersion"] == V1
    assert info["spec"]["cluster"] == {"server": server.url, "config": {"audience": "x"}}


def test_missing_plugin(tmp_path: Path) -> None:
    user = make_user(command="no-such-plugin", installHint="see the\n docs")
    with pytest.raises(ConfigError, match="`no-such-plugin`, which is not installed") as caught:
        connect_to("http://127.0.0.1:1", tmp_path, user=user).get(PODS, "a")
    assert caught.value.hint == "see the docs"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (
            "sys.exit('your session ended, run: login')",
            "exit code 1: your session ended, run: login",
        ),
        ("print('hello')", "printed no credential"),
        ("say()", "printed no credential"),
        ("print('[]')", "printed no credential"),
    ],
)
def test_failing_plugin(tmp_path: Path, code: str, says: str) -> None:
    write_plugin(tmp_path, code)
    with pytest.raises(Unauthorized) as caught:
        connect_to("http://127.0.0.1:1", tmp_path, user=make_user()).get(PODS, "a")
    assert says in caught.value.message
    assert caught.value.hint


def test_unknown_api_version(tmp_path: Path) -> None:
    write_plugin(tmp_path, "say(token='t')")
    user = make_user(apiVersion="client.authentication.k8s.io/v9")
    with pytest.raises(ConfigError, match="v9"):
        connect_to("http://127.0.0.1:1", tmp_path, user=user).get(PODS, "a")

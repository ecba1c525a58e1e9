"""Logins from tokens, token files and exec plug-ins, in the form of headers and certificates.

A plug-in's credential is kept until it expires or the server no longer accepts it. This module starts
plug-ins and reads token files, but opens no connection.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from windlass.kube.client.api_errors import Unauthorized
from windlass.kube.client.kubeconfig import ClusterTarget, ConfigError

_TOKEN_FILE_AGE_S = 60.0  # service account tokens are renewed in place
_EXPIRES_EARLY_S = 10.0
_PLUGIN_TIMEOUT_S = 120.0  # time for a user to log in with a browser
_VERSIONS = tuple(f"client.authentication.k8s.io/{v}" for v in ("v1", "v1beta1", "v1alpha1"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """Credentials of one user, in the form that requests send."""

    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    certificate_pem: bytes = field(default=b"", repr=False)
    key_pem: bytes = field(default=b"", repr=False)
    expires_s: float = float("inf")  # wall-clock time


class LoginSource:
    """Source of the current login. Thread-safe. Concurrent callers share one run of the plug-in."""

    def __init__(self, target: ClusterTarget, environ: Mapping[str, str]) -> None:
        self._target = target
        self._environ = environ
        self._lock = threading.Lock()
        self._login: Login | None = None

    def current(self) -> Login:
        with self._lock:
            if self._login is None or time.time() >= self._login.expires_s:
                self._login = self._fetch()
            return self._login

    def renew(self, refused: Login) -> bool:
        """Fetch a new login after the server refused one, and return whether it differs."""
        user = self._target.user
        with self._lock:
            if self._login is refused and (user.exec is not None or user.token_file):
                self._login = self._fetch()
            return self._login != refused

    def _fetch(self) -> Login:
        user = self._target.user
        certificate, key = user.certificate_pem, user.key_pem
        expires_s = float("inf")
        bearer = user.token
        if user.token_file:
            bearer = _read_token(Path(user.token_file), otherwise=bearer)
            expires_s = time.time() + _TOKEN_FILE_AGE_S
        elif user.exec is not None and not bearer:
            status = run_plugin(user.exec, target=self._target, environ=self._environ)
            bearer = str(status.get("token") or "")
            if status.get("clientCertificateData"):
                certificate = str(status["clientCertificateData"]).encode()
                key = str(status.get("clientKeyData") or "").encode()
            expires_s = _read_expiry(status)
        headers = list(user.impersonate)
        if bearer:
            headers.append(("Authorization", f"Bearer {bearer}"))
        elif user.username:
            pair = base64.b64encode(f"{user.username}:{user.password}".encode()).decode()
            headers.append(("Authorization", f"Basic {pair}"))
        return Login(
            headers=tuple(headers), certificate_pem=certificate, key_pem=key, expires_s=expires_s
        )


def _read_token(path: Path, *, otherwise: str) -> str:
    try:
        return path.read_text(encoding="utf-8").strip() or otherwise
    except OSError as error:
        if otherwise:
            return otherwise
        raise ConfigError(
            f"cannot read the token file {path}: {error.strerror}",
            hint="log in to the cluster again, or fetch the kubeconfig again",
        ) from error


def _read_expiry(status: Mapping[str, Any]) -> float:
    text = status.get("expirationTimestamp")
    if not isinstance(text, str):
        return float("inf")
    try:
        # Python 3.10 parses neither "Z" nor fractions without exactly three or six digits.
        whole, _, zone = text.strip().replace("Z", "+00:00").partition("+")
        return (
            datetime.fromisoformat(f"{whole[:19]}+{zone or '00:00'}").timestamp() - _EXPIRES_EARLY_S
        )
    except ValueError:
        return float("inf")


def run_plugin(
    plugin: Mapping[str, Any], *, target: ClusterTarget, environ: Mapping[str, str]
) -> Mapping[str, Any]:
    """Run an exec plug-in, and return the `status` of the ExecCredential that it prints."""
    version = str(plugin.get("apiVersion") or "")
    if version not in _VERSIONS:
        raise ConfigError(
            f"the kubeconfig's exec plug-in has the unknown apiVersion {version!r}",
            hint=f"supported versions are {', '.join(_VERSIONS)}",
        )
    command = _find_command(plugin, target.folder, environ)
    is_interactive = (
        plugin.get("interactiveMode") != "Never" and sys.stdin is not None and sys.stdin.isatty()
    )
    info = {
        "apiVersion": version,
        "kind": "ExecCredential",
        "spec": {"interactive": is_interactive},
    }
    if plugin.get("provideClusterInfo"):
        info["spec"] = {"interactive": is_interactive, "cluster": _cluster_info(target)}
    added = {str(e.get("name")): str(e.get("value", "")) for e in plugin.get("env") or []}
    output = _run(
        [command, *(str(arg) for arg in plugin.get("args") or [])],
        environ={**environ, **added, "KUBERNETES_EXEC_INFO": json.dumps(info)},
        is_interactive=is_interactive,
    )
    return _read_credential(output, command)


def _cluster_info(target: ClusterTarget) -> dict[str, Any]:
    extensions = {
        item.get("name"): item.get("extension") for item in target.cluster.get("extensions") or []
    }
    info: dict[str, Any] = {
        "server": target.server,
        "tls-server-name": target.tls_server_name,
        "insecure-skip-tls-verify": target.insecure,
        "certificate-authority-data": base64.b64encode(target.ca_pem).decode(),
        "proxy-url": target.proxy_url,
        "config": extensions.get("client.authentication.k8s.io/exec"),
    }
    return {key: value for key, value in info.items() if value}


def _find_command(plugin: Mapping[str, Any], folder: Path, environ: Mapping[str, str]) -> str:
    name = str(plugin["command"])
    wanted = str(folder / name) if os.sep in name else name
    command = shutil.which(wanted, path=environ.get("PATH"))
    if command is None:
        text = " ".join(str(plugin.get("installHint") or "").split())
        raise ConfigError(
            f"the kubeconfig logs in with `{name}`, which is not installed",
            hint=text or f"install {name}, or put its folder on the PATH",
        )
    return command


def _run(command: list[str], *, environ: Mapping[str, str], is_interactive: bool) -> bytes:
    name = os.path.basename(command[0])
    try:
        process = subprocess.Popen(
            command,
            env=dict(environ),
            stdin=None if is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=None if is_interactive else subprocess.PIPE,  # may ask the user to log in
        )
    except OSError as error:
        raise ConfigError(
            f"cannot start the login plug-in {name}: {error.strerror}", hint="install it again"
        ) from error
    how = ""
    with process:
        try:
            output, errors = process.communicate(timeout=_PLUGIN_TIMEOUT_S)
        except subprocess.TimeoutExpired as late:
            process.kill()
            output, errors = b"", late.stderr or b""
            how = f"did not finish within {_PLUGIN_TIMEOUT_S:g} s"
    if process.returncode == 0:
        return output
    how = how or f"failed with exit code {process.returncode}"
    text = (errors or b"").decode(errors="replace").strip()[-2000:] or "no error output"
    raise Unauthorized(
        f"the login plug-in {name} {how}: {text}",
        hint="log in to the cluster again, then try again",
    )


def _read_credential(output: bytes, command: str) -> Mapping[str, Any]:
    try:
        status = json.loads(output)["status"]
        if isinstance(status, dict) and (
            status.get("token") or status.get("clientCertificateData")
        ):
            return status
    except (ValueError, KeyError, TypeError):
        pass
    raise Unauthorized(
        f"the login plug-in {os.path.basename(command)} printed no credential",
        hint="run it manually: it must print an ExecCredential with a token or a certificate",
    )

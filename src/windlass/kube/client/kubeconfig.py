"""Cluster and user from kubeconfig files or the pod's service account, as a `ClusterTarget`.

The rules are those of kubectl. $KUBECONFIG may name several files, and the first one that defines an
entry takes precedence. Without it, ~/.kube/config is read, or the service account of the current pod.
This module only reads files. `kube.client.auth` fetches credentials.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from windlass.errors import EngineError
from windlass.near_names import did_you_mean

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_LOOK = "`kubectl config view` shows its contents"


class ConfigError(EngineError):
    """Missing or broken kubeconfig, or an unknown name in it."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class User:
    """Credentials of a user, which its repr hides."""

    token: str = field(default="", repr=False)
    token_file: str = ""
    username: str = ""
    password: str = field(default="", repr=False)
    certificate_pem: bytes = field(default=b"", repr=False)
    key_pem: bytes = field(default=b"", repr=False)
    exec: Mapping[str, Any] | None = field(default=None, repr=False)
    impersonate: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterTarget:
    """Cluster, user and namespace to connect with."""

    server: str
    context: str
    namespace: str
    user: User
    ca_pem: bytes = b""
    insecure: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    folder: Path  # folder of the kubeconfig, to which command paths are relative
    cluster: Mapping[str, Any] = field(repr=False)  # passed to exec plug-ins that need it


def read_target(
    *,
    context: str = "",
    namespace: str = "",
    environ: Mapping[str, str],
    account: Path = SERVICE_ACCOUNT,
) -> ClusterTarget:
    """Return the selected cluster.

    The namespace is the given one, or the context's, or the pod's own.
    """
    paths = _config_paths(environ)
    config = _merge(read for path in paths if (read := _read_file(path)) is not None)
    if config is not None and (context or config.current):
        return _target_of(config, context or config.current, namespace)
    is_in_pod = bool(environ.get("KUBERNETES_SERVICE_HOST")) and (account / "token").exists()
    if is_in_pod and not context:
        return _target_in_pod(environ, account, namespace)
    looked = ", ".join(str(path) for path in paths)
    if config is None:
        raise ConfigError(
            f"no kubeconfig found: searched {looked}",
            hint="set KUBECONFIG to the file your cluster's admin gave you, or run inside a pod",
        )
    raise ConfigError(
        f"no context is selected in {looked}",
        hint=f"select one with --context or `kubectl config use-context`: {_names(config.contexts)}",
    )


def _config_paths(environ: Mapping[str, str]) -> list[Path]:
    named = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
    return [path.expanduser() for path in named] or [home / ".kube" / "config"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """Named entry of a kubeconfig, and its file."""

    values: Mapping[str, Any]
    path: Path

    def text(self, key: str) -> str:
        value = self.values.get(key)
        return "" if value is None else str(value)

    def resolve(self, text: str) -> Path:
        return self.path.parent / Path(text).expanduser()

    def content(self, key: str) -> bytes:
        """Return the content of `key-data`, or else of the file of `key`, as kubectl does."""
        if data := self.text(f"{key}-data"):
            try:
                return base64.b64decode(data, validate=True)
            except (binascii.Error, ValueError) as error:
                raise ConfigError(
                    f"{key}-data in {self.path} is not valid base64",
                    hint="fetch the kubeconfig again",
                ) from error
        return (
            _read_bytes(self.resolve(name), f"{key} of {self.path}")
            if (name := self.text(key))
            else b""
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Config:
    current: str
    contexts: Mapping[str, _Entry]
    clusters: Mapping[str, _Entry]
    users: Mapping[str, _Entry]


def _read_file(path: Path) -> _Config | None:
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot read the kubeconfig {path}: {error}",
            hint="check KUBECONFIG and the file's mode",
        ) from error
    table = _parse(text, path)
    if table is None:
        return None
    if not isinstance(table, dict):
        raise ConfigError(f"{path} is not a kubeconfig: it does not contain a mapping", hint=_LOOK)
    return _Config(
        current=str(table.get("current-context") or ""),
        contexts=_entries(table, "contexts", "context", path),
        clusters=_entries(table, "clusters", "cluster", path),
        users=_entries(table, "users", "user", path),
    )


def _parse(text: str, path: Path) -> object:
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # YAML also has a syntax with braces
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return yaml.load(text, Loader=loader)  # noqa: S506 (a safe loader, in C if available)
    except yaml.YAMLError as error:
        what = " ".join(str(error).split())
        raise ConfigError(f"{path} is not valid YAML: {what}", hint="correct that line") from error


def _entries(table: dict[str, Any], plural: str, key: str, path: Path) -> dict[str, _Entry]:
    items = table.get(plural) or []
    entries: dict[str, _Entry] = {}
    for item in items if isinstance(items, list) else [None]:
        values = item.get(key) if isinstance(item, dict) else None
        if not isinstance(item, dict) or not isinstance(values or {}, dict) or not item.get("name"):
            raise ConfigError(
                f"{path} is not a kubeconfig: `{plural}` must be a list of name and {key}",
                hint=_LOOK,
            )
        entries.setdefault(str(item["name"]), _Entry(values=values or {}, path=path))
    return entries


def _merge(configs: Iterable[_Config]) -> _Config | None:
    merged: _Config | None = None
    for config in configs:
        merged = (
            config
            if merged is None
            else _Config(
                current=merged.current or config.current,
                contexts={**config.contexts, **merged.contexts},
                clusters={**config.clusters, **merged.clusters},
                users={**config.users, **merged.users},
            )
        )
    return merged


def _target_of(config: _Config, name: str, namespace: str) -> ClusterTarget:
    context = _find(config.contexts, name, "context", "choose with --context one of")
    cluster = _find(config.clusters, context.text("cluster"), "cluster", "the kubeconfig has")
    server = cluster.text("server").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise ConfigError(
            f"cluster {context.text('cluster')!r} in {cluster.path} has an invalid server URL: {server!r}",
            hint="use a URL such as https://host:6443",
        )
    user_name = context.text("user")
    user = _find(config.users, user_name, "user", "the kubeconfig has") if user_name else None
    return ClusterTarget(
        server=server,
        context=name,
        namespace=namespace or context.text("namespace") or "default",
        user=_read_user(user, user_name) if user else User(),
        ca_pem=cluster.content("certificate-authority"),
        insecure=bool(cluster.values.get("insecure-skip-tls-verify")),
        tls_server_name=cluster.text("tls-server-name"),
        proxy_url=cluster.text("proxy-url"),
        folder=user.path.parent if user else cluster.path.parent,
        cluster=cluster.values,
    )


def _find(entries: Mapping[str, _Entry], name: str, what: str, list_hint: str) -> _Entry:
    if name in entries:
        return entries[name]
    hint = did_you_mean(name, entries, f"{list_hint} {_names(entries)}", show=repr)
    raise ConfigError(f"{what} {name!r} not found in the kubeconfig", hint=hint)


def _names(entries: Mapping[str, _Entry]) -> str:
    return ", ".join(sorted(entries)[:20]) or "none"


def _read_user(entry: _Entry, name: str) -> User:
    if entry.values.get("auth-provider"):
        raise ConfigError(
            f"user {name!r} logs in with an auth-provider, which Kubernetes dropped in 1.26",
            hint="fetch the kubeconfig again with your provider's current tool: it will use an exec plug-in",
        )
    plugin = entry.values.get("exec")
    if plugin is not None and not (isinstance(plugin, dict) and plugin.get("command")):
        raise ConfigError(f"user {name!r} has an exec plug-in without a command", hint=_LOOK)
    token_file = entry.text("tokenFile")
    return User(
        token=entry.text("token"),
        token_file=str(entry.resolve(token_file)) if token_file else "",
        username=entry.text("username"),
        password=entry.text("password"),
        certificate_pem=entry.content("client-certificate"),
        key_pem=entry.content("client-key"),
        exec=plugin,
        impersonate=tuple(_impersonation(entry)),
    )


def _impersonation(entry: _Entry) -> Iterable[tuple[str, str]]:
    if name := entry.text("as"):
        yield "Impersonate-User", name
    if uid := entry.text("as-uid"):
        yield "Impersonate-Uid", uid
    for group in entry.values.get("as-groups") or []:
        yield "Impersonate-Group", str(group)


def _target_in_pod(environ: Mapping[str, str], account: Path, namespace: str) -> ClusterTarget:
    host = environ["KUBERNETES_SERVICE_HOST"]
    host = f"[{host}]" if ":" in host else host
    if not namespace:
        namespace = _read_bytes(account / "namespace", "the pod's namespace").decode().strip()
    return ClusterTarget(
        server=f"https://{host}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}",
        context="",
        namespace=namespace or "default",
        user=User(token_file=str(account / "token")),
        ca_pem=_read_bytes(account / "ca.crt", "the pod's certificate authority"),
        folder=account,
        cluster={},
    )


def _read_bytes(path: Path, what: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {what}, {path}: {error.strerror}", hint="fetch the kubeconfig again"
        ) from error

"""TLS, proxies and bare sockets to an API server.

Pure but for `open_socket`, which connects, and for the moment in which a client key lies in a file of
mode 0600, since OpenSSL takes keys from files only.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import socket
import ssl
import tempfile
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit

from windlass.kube.auth import Login
from windlass.kube.kubeconfig import ClusterTarget, ConfigError


def make_tls_context(target: ClusterTarget, login: Login) -> ssl.SSLContext:
    """Trusts the cluster's own authority, or this machine's where the kubeconfig names none."""
    context = ssl.create_default_context() if not target.ca_pem else _trust_only(target)
    # Python 3.13 asks of authorities what many clusters' own, made years ago, do not have.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if target.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if login.certificate_pem:
        _load_client_key(context, login, target)
    return context


def _trust_only(target: ClusterTarget) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cadata=target.ca_pem.decode("ascii"))
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the certificate authority of context {target.context!r} is no certificate",
            hint="fetch the kubeconfig again",
        ) from error


def _load_client_key(context: ssl.SSLContext, login: Login, target: ClusterTarget) -> None:
    handle, path = tempfile.mkstemp(prefix="windlass-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(login.certificate_pem.rstrip() + b"\n" + login.key_pem)
        context.load_cert_chain(path)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the client certificate of context {target.context!r} and its key do not fit: {error}",
            hint="fetch the kubeconfig again",
        ) from error
    finally:
        os.unlink(path)


def find_proxy(target: ClusterTarget, environ: Mapping[str, str]) -> str:
    """The proxy to go through, or nothing: the kubeconfig's, else $HTTPS_PROXY less $NO_PROXY."""
    url = urlsplit(target.server)
    proxy = target.proxy_url or _proxy_of_environ(url, environ)
    if not proxy:
        return ""
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.startswith(("http://", "https://")):
        raise ConfigError(
            f"the proxy {_without_password(proxy)} is neither http nor https",
            hint="set proxy-url in the kubeconfig, or HTTPS_PROXY, to an HTTP proxy",
        )
    return proxy


def _proxy_of_environ(url: SplitResult, environ: Mapping[str, str]) -> str:
    def read(name: str) -> str:
        return environ.get(name.lower()) or environ.get(name.upper()) or ""

    host = url.hostname or ""
    if host in ("localhost", "127.0.0.1", "::1"):
        return ""
    is_direct = any(_is_within(host, entry.strip()) for entry in read("no_proxy").split(","))
    return "" if is_direct else read(f"{url.scheme}_proxy")


def _is_within(host: str, entry: str) -> bool:
    """Whether an entry of $NO_PROXY means this host: a name, a domain, an address, a network, or `*`."""
    entry = entry.rpartition(":")[0] if entry.count(":") == 1 else entry
    if "/" in entry:
        try:
            return ipaddress.ip_address(host) in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    name = entry.lower().lstrip("*").lstrip(".")
    return entry == "*" or (bool(name) and (host == name or host.endswith(f".{name}")))


def _without_password(proxy: str) -> str:
    scheme, _, rest = proxy.partition("://")
    return f"{scheme}://{rest.rpartition('@')[2]}"


def split_proxy(proxy: str) -> tuple[str, str]:
    """The proxy's address, and `user:password` where it has one."""
    url = urlsplit(proxy)
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}", pair


def keep_alive_options() -> list[tuple[int, int, int]]:
    """Socket options by which a peer that silently went away is noticed within half a minute."""
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    ]
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3)):
        if hasattr(socket, name):
            options.append((socket.IPPROTO_TCP, getattr(socket, name), value))
    return options


def open_socket(
    target: ClusterTarget, context: ssl.SSLContext | None, *, proxy: str, timeout_s: float
) -> socket.socket:
    """A connected socket to the server, through the proxy, in TLS where the server speaks it."""
    url = urlsplit(target.server)
    host, port = url.hostname or "", url.port or (443 if url.scheme == "https" else 80)
    if proxy:
        sock = _open_tunnel(host, port, proxy=proxy, timeout_s=timeout_s)
    else:
        sock = socket.create_connection((host, port), timeout=timeout_s)
    try:
        for option in keep_alive_options():
            sock.setsockopt(*option)
        if context is None:
            return sock
        return context.wrap_socket(sock, server_hostname=target.tls_server_name or host)
    except BaseException:
        sock.close()
        raise


def _open_tunnel(host: str, port: int, *, proxy: str, timeout_s: float) -> socket.socket:
    address, pair = split_proxy(proxy)
    url = urlsplit(address)
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=timeout_s)
    headers = {}
    if pair:
        from base64 import b64encode

        headers["Proxy-Authorization"] = "Basic " + b64encode(pair.encode()).decode()
    connection.set_tunnel(host, port, headers)
    connection.connect()
    return connection.sock

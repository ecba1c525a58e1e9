"""HTTP requests to an API server: TLS, proxy, login, deadline, and retries.

Only this module uses urllib3. It handles paths and bytes, not object kinds. Failures are raised as the
errors of `api_errors`. A client key is briefly stored in a file of mode 0600, because OpenSSL reads keys
only from files.
"""

from __future__ import annotations

import http.client
import ipaddress
import json
import os
import random
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, unquote, urlencode, urlsplit

import urllib3

from windlass.kube.client.api_errors import (
    DEFAULT_ENGINE,
    ClusterError,
    ClusterPlace,
    Unreachable,
    make_unreachable,
    read_refusal,
)
from windlass.kube.client.auth import Login, LoginSource
from windlass.kube.client.kubeconfig import ClusterTarget, ConfigError
from windlass.names import VERSION

REQUEST_S = 10.0
RETRY_FOR_S = 10.0
_JSON = "application/json, */*"
# Requests only the metadata. A whole compressed Secret in the response costs 0.1 s on a busy machine.
_BRIEF = f"application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1, {_JSON}"
_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_JITTER = random.SystemRandom()
_NEVER_SENT = (
    urllib3.exceptions.NewConnectionError,
    urllib3.exceptions.ConnectTimeoutError,
    urllib3.exceptions.NameResolutionError,
    urllib3.exceptions.SSLError,
    urllib3.exceptions.ProxyError,
)


def make_tls_context(target: ClusterTarget, login: Login) -> ssl.SSLContext:
    """Return a TLS context that trusts the cluster's own certificate authority.

    Without one in the kubeconfig it trusts the authorities of this machine.
    """
    context = ssl.create_default_context() if not target.ca_pem else _trust_only(target)
    # Python 3.13 requires extensions that older authorities of many clusters lack.
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
            f"the certificate authority of context {target.context!r} is not a valid certificate",
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
            f"the client certificate of context {target.context!r} does not match its key: {error}",
            hint="fetch the kubeconfig again",
        ) from error
    finally:
        os.unlink(path)


def find_proxy(target: ClusterTarget, environ: Mapping[str, str]) -> str:
    """Return the proxy to use, or an empty string.

    The kubeconfig takes precedence over $HTTPS_PROXY. $NO_PROXY lists the hosts without a proxy.
    """
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
    """Return whether an entry of $NO_PROXY matches this host.

    An entry is a name, a domain, an address, a network, or `*`.
    """
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
    """Return the address of a proxy, and its `user:password` or an empty string."""
    url = urlsplit(proxy)
    pair = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else ""
    return f"{url.scheme}://{url.netloc.rpartition('@')[2]}", pair


def keep_alive_options() -> list[tuple[int, int, int]]:
    """Return socket options that detect a vanished peer within half a minute."""
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
    """Return a socket connected to the server, through the proxy if there is one, with TLS for https."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """HTTP request. `description` names it in errors."""

    method: str
    path: str
    description: str
    params: Mapping[str, Any] | None = None
    body: object = None
    content_type: str = "application/json"
    timeout_s: float = REQUEST_S
    is_repeatable: bool = True  # idempotent
    is_retried: bool = True  # retry after transient failures
    is_brief: bool = False  # return only the metadata of the object

    @property
    def url(self) -> str:
        params = {k: v for k, v in (self.params or {}).items() if v not in (None, "")}
        return self.path + (f"?{urlencode(params)}" if params else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpResponse:
    """HTTP response. With `was_lost`, the server may also have carried out an earlier attempt."""

    data: bytes
    was_lost: bool


def make_pause_s(num_tries: int, *, asked_s: float = 0.0) -> float:
    """Return the pause before the next attempt: exponential with jitter, and at least `asked_s`."""
    pause_s: float = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(num_tries, 10))
    return max(asked_s, pause_s * _JITTER.uniform(0.5, 1.0))


class Transport:
    """Sender of requests to one cluster as one user. Thread-safe."""

    def __init__(
        self,
        target: ClusterTarget,
        environ: Mapping[str, str],
        *,
        engine: str = DEFAULT_ENGINE,
        retry_for_s: float = RETRY_FOR_S,
    ) -> None:
        self.target = target
        self._retry_for_s = retry_for_s
        self.where = ClusterPlace(server=target.server, context=target.context, engine=engine)
        self.login = LoginSource(target, environ)
        self.proxy = find_proxy(target, environ)
        self._lock = threading.Lock()
        self._manager: tuple[tuple[bytes, bytes], urllib3.PoolManager] | None = None
        if target.insecure:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def request(self, request: HttpRequest) -> HttpResponse:
        """Return the response. Retry for about ten seconds while the server is busy or unreachable."""
        give_up_s = time.monotonic() + self._retry_for_s
        num_tries = 0
        was_lost = False
        while True:
            try:
                with self.open(request) as response:
                    data = self._read_all(response, request)
                return HttpResponse(data=data, was_lost=was_lost)
            except ClusterError as error:
                error.was_lost = was_lost
                pause_s = make_pause_s(num_tries, asked_s=error.retry_after_s)
                is_safe = request.is_repeatable or not error.maybe_done
                may_repeat = request.is_retried and is_safe and error.retryable
                is_too_late = time.monotonic() + pause_s > give_up_s
                if not may_repeat or is_too_late:
                    raise
                was_lost = was_lost or error.maybe_done
            num_tries += 1
            time.sleep(pause_s)

    @contextmanager
    def open(
        self, request: HttpRequest, *, read_timeout_s: float | None = None
    ) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send the request once, and yield the unread response. Raise an error if the server refuses it."""
        login = self.login.current()
        response = self._send(request, login, read_timeout_s)
        if response.status == 401 and self.login.renew(login):
            response.close()
            response = self._send(request, self.login.current(), read_timeout_s)
        try:
            if response.status >= 300:
                raise self._refusal(response, request)
            yield response
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error, request) from error
        finally:
            response.close()  # a fully read response has already returned its connection to the pool

    def _send(
        self, request: HttpRequest, login: Login, read_timeout_s: float | None
    ) -> urllib3.BaseHTTPResponse:
        headers = urllib3.HTTPHeaderDict(
            {"Accept": _BRIEF if request.is_brief else _JSON, "User-Agent": f"windlass/{VERSION}"}
        )
        for name, value in login.headers:
            headers.add(name, value)
        data = None
        if request.body is not None:
            data = json.dumps(request.body, separators=(",", ":")).encode()
            headers["Content-Type"] = request.content_type
        if read_timeout_s is None:
            headers["Accept-Encoding"] = "gzip"
        else:
            # Another thread may cut a stream, so its connection must not be reused.
            headers["Connection"] = "close"
        try:
            return self._pools(login).urlopen(
                request.method,
                self.target.server + request.url,
                body=data,
                headers=headers,
                timeout=urllib3.Timeout(
                    connect=min(request.timeout_s, REQUEST_S),
                    read=read_timeout_s or request.timeout_s,
                ),
                retries=False,
                redirect=False,
                preload_content=False,
            )
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error, request) from error

    def _pools(self, login: Login) -> urllib3.PoolManager:
        """Return the connection pool. Replace it if a plug-in has returned another certificate."""
        key = (login.certificate_pem, login.key_pem)
        with self._lock:
            if self._manager is None or self._manager[0] != key:
                self._manager = (key, self._make_pools(login))
            return self._manager[1]

    def _make_pools(self, login: Login) -> urllib3.PoolManager:
        options: dict[str, Any] = {"maxsize": 32, "socket_options": keep_alive_options()}
        if self.target.server.startswith("https:"):
            options["ssl_context"] = make_tls_context(self.target, login)
            if self.target.tls_server_name:
                options["server_hostname"] = self.target.tls_server_name
        if not self.proxy:
            return urllib3.PoolManager(**options)
        address, pair = split_proxy(self.proxy)
        headers = urllib3.make_headers(proxy_basic_auth=pair) if pair else None
        return urllib3.ProxyManager(address, proxy_headers=headers, **options)

    def _read_all(self, response: urllib3.BaseHTTPResponse, request: HttpRequest) -> bytes:
        deadline_s = time.monotonic() + request.timeout_s
        parts = []
        while part := response.read1(1 << 20):
            parts.append(part)
            if time.monotonic() > deadline_s:
                raise make_unreachable(
                    TimeoutError(), where=self.where, deadline_s=request.timeout_s
                )
        return b"".join(parts)

    def _refusal(self, response: urllib3.BaseHTTPResponse, request: HttpRequest) -> ClusterError:
        body = self._read_all(response, request)
        error = read_refusal(
            response.status, body, description=request.description, where=self.where
        )
        try:
            error.retry_after_s = float(response.headers.get("Retry-After") or 0)
        except ValueError:
            pass  # it may be a date, so use the default back-off
        return error

    def _unreachable(self, error: Exception, request: HttpRequest) -> Unreachable:
        failure = make_unreachable(error, where=self.where, deadline_s=request.timeout_s)
        failure.maybe_done = not isinstance(error, _NEVER_SENT)
        return failure

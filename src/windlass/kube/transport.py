"""One HTTP exchange with an API server: login, deadline, and the tries that are worth it.

The only user of urllib3. Knows paths and bytes, nothing of kinds; errors leave as `refusals`.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import urllib3

from windlass.kube.api_errors import (
    DEFAULT_ENGINE,
    ClusterError,
    ClusterPlace,
    Unreachable,
    make_unreachable,
    read_refusal,
)
from windlass.kube.auth import Login, LoginSource
from windlass.kube.kubeconfig import ClusterTarget
from windlass.kube.sockets import find_proxy, keep_alive_options, make_tls_context, split_proxy
from windlass.names import VERSION

REQUEST_S = 10.0
RETRY_FOR_S = 10.0
_JSON = "application/json, */*"
# A Secret that was just sent would come back whole, and packed: a tenth of a second on a busy machine.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """What is asked, and the words for it in an error."""

    method: str
    path: str
    asked: str
    params: Mapping[str, Any] | None = None
    body: object = None
    content_type: str = "application/json"
    timeout_s: float = REQUEST_S
    is_repeatable: bool = True  # doing it twice is doing it once
    is_patient: bool = True  # worth trying again at all
    is_brief: bool = False  # of the object itself only its metadata is wanted back

    @property
    def url(self) -> str:
        params = {k: v for k, v in (self.params or {}).items() if v not in (None, "")}
        return self.path + (f"?{urlencode(params)}" if params else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAnswer:
    """What came back; `was_lost` says that an earlier try may have been carried out unseen."""

    data: bytes
    was_lost: bool


def make_pause_s(num_tries: int, *, asked_s: float = 0.0) -> float:
    """How long to wait before the next try: doubling, with jitter, at least what the server asks."""
    pause_s: float = min(_LONGEST_PAUSE_S, _PAUSE_S * 2.0 ** min(num_tries, 10))
    return max(asked_s, pause_s * _JITTER.uniform(0.5, 1.0))


class Transport:
    """Sends requests to one cluster as one user. Thread-safe."""

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

    def ask(self, request: HttpRequest) -> HttpAnswer:
        """The answer, tried for about ten seconds while the server is busy or away."""
        give_up_s = time.monotonic() + self._retry_for_s
        num_tries = 0
        was_lost = False
        while True:
            try:
                with self.open(request) as response:
                    data = self._read_all(response, request)
                return HttpAnswer(data=data, was_lost=was_lost)
            except ClusterError as error:
                error.was_lost = was_lost
                pause_s = make_pause_s(num_tries, asked_s=error.retry_after_s)
                is_safe = request.is_repeatable or not error.maybe_done
                may_repeat = request.is_patient and is_safe and error.retryable
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
        """One try: the answer's body, not yet read. A refusal is raised as what it is."""
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
            response.close()  # one that was read to its end is back in the pool by now

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
            # A stream may be cut by another thread, which must never hit a connection in its next use.
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
        """The pool of connections; a plug-in that hands out another certificate needs another."""
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
        error = read_refusal(response.status, body, asked=request.asked, where=self.where)
        try:
            error.retry_after_s = float(response.headers.get("Retry-After") or 0)
        except ValueError:
            pass  # a date: our own back-off will do
        return error

    def _unreachable(self, error: Exception, request: HttpRequest) -> Unreachable:
        failure = make_unreachable(error, where=self.where, deadline_s=request.timeout_s)
        failure.maybe_done = not isinstance(error, _NEVER_SENT)
        return failure

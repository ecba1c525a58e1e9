"""Errors of requests to an API server, each with a hint about what to do next. No I/O.

- `ClusterError`: the request failed, after any useful retries. A subclass of `EngineError`.
- `Unreachable`: no answer because of a refused connection, an unknown host, TLS, or the deadline.
- `Unauthorized`: the server did not accept the login.
- `Forbidden`: the user lacks a right. The message names verb, resource and namespace.
- `NotFound`: no such object, or the cluster does not serve its kind.
- `Conflict`: the object exists already, or another client changed it.
- `Rejected`: quota, admission or validation failed, in the server's own words.

Only this module translates errors of the server and of the HTTP library. It keeps the server's messages
unchanged.
"""

from __future__ import annotations

import json
import re
import socket
import ssl
from dataclasses import dataclass

from windlass.errors import EngineError

DEFAULT_ENGINE = "kubernetes"
_BUSY = frozenset({429, 500, 502, 503, 504})
_MAY_NOT = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) (?:resource "(?P<resource>[^"]+)"'
    r'(?: in API group "(?P<group>[^"]*)")?(?: in the namespace "(?P<namespace>[^"]+)")?'
    r'|path "(?P<path>[^"]+)")'
)
_NO_NAMESPACE = re.compile(r'namespaces "(?P<name>[^"]+)" not found')
_WEBHOOK_CALL = re.compile(r'failed calling webhook "(?P<name>[^"]+)": (?P<why>.*)', re.DOTALL)


class ClusterError(EngineError):
    """Failed request to a cluster, with the `code` and `reason` that the server returned."""

    def __init__(
        self, message: str, *, hint: str = "", code: int | None = None, reason: str = ""
    ) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.reason = reason
        if code in _BUSY:
            self.retryable = True
        self.maybe_done = code is None or code >= 500  # the server may have carried out the request
        self.was_lost = False  # the server may have carried out an earlier attempt
        self.retry_after_s = 0.0


class Unreachable(ClusterError):
    """No answer: refused connection, unknown host, TLS, or the deadline."""

    retryable = True


class Unauthorized(ClusterError):
    """Login that the server does not accept, or no longer accepts."""


class Forbidden(ClusterError):
    """Missing right. The message names verb, resource and namespace."""


class NotFound(ClusterError):
    """Unknown object, or a kind that the cluster does not serve."""


class Conflict(ClusterError):
    """Object that exists already, or that another client changed."""


class Rejected(ClusterError):
    """Request that failed quota, admission or validation, with the server's own words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlace:
    """Cluster and engine of a request, for messages."""

    server: str
    context: str
    engine: str = DEFAULT_ENGINE

    def __str__(self) -> str:
        return f"{self.server} (context {self.context})" if self.context else self.server


def make_role_hint(engine: str) -> str:
    """Return a hint about the Role that a user of this engine needs."""
    return f"`windlass doctor -e {engine} --role` prints the Role to ask an admin for"


def read_refusal(code: int, body: bytes, *, description: str, where: ClusterPlace) -> ClusterError:
    """Return the error for a failed request. `description` is like "create secrets/a in namespace x"."""
    text, reason = _read_status(code, body)
    if code == 401:
        return _make_unauthorized(text, where)
    if code == 403:
        return _make_forbidden(text, reason, description=description, where=where)
    if code == 404:
        return _make_not_found(text, reason, description=description, where=where)
    if code >= 500 and (webhook := _WEBHOOK_CALL.search(text)):
        return _make_webhook_error(webhook, code, reason, description=description, where=where)
    kind, hint = ClusterError, "check the state of the cluster, then try again"
    if code == 409:
        kind = Conflict
        hint = "choose another name, or delete the old object" if reason == "AlreadyExists" else ""
    elif code == 410:
        hint = "list again"
    elif code in (400, 405, 406, 413, 415, 422):
        kind, hint = Rejected, "fix the problem that the message names"
    elif code in _BUSY:
        hint = "the server is overloaded or failing; try again later"
    return kind(f"could not {description}: {text}", hint=hint, code=code, reason=reason)


def _read_status(code: int, body: bytes) -> tuple[str, str]:
    """Return the message and reason of a Status object, or the text that a proxy sent instead."""
    try:
        status = json.loads(body)
    except ValueError:
        status = None
    if isinstance(status, dict) and isinstance(status.get("message"), str):
        return status["message"] or f"HTTP {code}", str(status.get("reason") or "")
    text = " ".join(body[:400].decode(errors="replace").split())
    return f"HTTP {code}" + (f": {text}" if text else ""), ""


def _make_unauthorized(text: str, where: ClusterPlace) -> Unauthorized:
    return Unauthorized(
        f"{where} does not accept your login: {text}",
        hint="it may have expired: log in again; `kubectl auth whoami` shows whether it worked",
        code=401,
        reason="Unauthorized",
    )


def _make_forbidden(
    text: str, reason: str, *, description: str, where: ClusterPlace
) -> ClusterError:
    match = _MAY_NOT.search(text)
    if match is None:
        # Quotas, Pod Security and webhooks also return 403, but a Role would not help.
        return Rejected(
            f"the cluster refused to {description}: {text}",
            hint="fix the problem that the message names, or ask an admin about that rule",
            code=403,
            reason=reason,
        )
    if match["user"] == "system:anonymous":
        return _make_unauthorized("no login was sent", where)
    if match["path"]:
        what = f"{match['verb']} {match['path']}"
    else:
        group = f".{match['group']}" if match["group"] else ""
        what = f"{match['verb']} {match['resource']}{group}"
        what += f" in namespace {match['namespace']}" if match["namespace"] else ""
    hint = make_role_hint(where.engine)
    return Forbidden(f"you may not {what}", hint=hint, code=403, reason="Forbidden")


def _make_webhook_error(
    webhook: re.Match[str], code: int, reason: str, *, description: str, where: ClusterPlace
) -> ClusterError:
    """Return the error for a webhook that did not respond. The webhook has not rejected the object."""
    hint = "its operator may be down: ask a cluster administrator to check it"
    if where.engine != DEFAULT_ENGINE:
        hint += f", or use `--engine {DEFAULT_ENGINE}`, which needs no operator"
    return ClusterError(
        f"could not {description}: the cluster's webhook {webhook['name']} did not respond: {webhook['why']}",
        hint=hint,
        code=code,
        reason=reason,
    )


def _make_not_found(text: str, reason: str, *, description: str, where: ClusterPlace) -> NotFound:
    if missing := _NO_NAMESPACE.fullmatch(text):
        return NotFound(
            f"could not {description}: namespace {missing['name']} not found",
            hint="run `kubectl get namespaces` to list them, and choose one with --namespace",
            code=404,
            reason=reason,
        )
    if reason == "NotFound" and "could not find the requested resource" not in text:
        return NotFound(f"could not {description}: {text}", code=404, reason=reason)
    return NotFound(
        f"could not {description}: {where} does not serve it",
        hint=f"it may lack an operator: `windlass doctor -e {where.engine}` lists the installed operators",
        code=404,
        reason=reason,
    )


def make_unreachable(
    error: BaseException, *, where: ClusterPlace, deadline_s: float = 0.0
) -> Unreachable:
    """Return the error for a request without an answer, from the cause that the HTTP library wrapped."""
    causes = _causes(error)
    certificate = next((c for c in causes if isinstance(c, ssl.SSLCertVerificationError)), None)
    if certificate is not None:
        refused = Unreachable(
            f"{where} has a certificate that cannot be trusted: {certificate.verify_message}",
            hint=_certificate_hint(certificate.verify_message),
        )
        refused.retryable = False
        return refused
    names = {type(cause).__name__ for cause in causes}
    unknown = next((cause for cause in causes if isinstance(cause, socket.gaierror)), None)
    if unknown is not None:
        refused = Unreachable(
            f"cannot reach {where}: {unknown.strerror}",
            hint="check the server's name in the kubeconfig, DNS and VPN",
        )
        refused.retryable = unknown.errno == socket.EAI_AGAIN
        return refused
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        what, hint = "connection refused", "is the cluster up, and is this the right context?"
    elif names & {"TimeoutError", "timeout", "ReadTimeoutError", "ConnectTimeoutError"}:
        within = f" within {deadline_s:g} s" if deadline_s else " in time"
        what, hint = f"no answer{within}", "check network, VPN and proxy, then try again"
    else:
        cause = next((c for c in reversed(causes) if isinstance(c, OSError)), error)
        what, hint = str(cause) or type(cause).__name__, "check network, VPN and proxy"
    return Unreachable(f"cannot reach {where}: {what}", hint=hint)


def _certificate_hint(text: str) -> str:
    if "ostname" in text or "IP address" in text:
        return "the kubeconfig's `server` or `tls-server-name` is not a name in the certificate"
    if "expired" in text or "not yet valid" in text:
        return "check this machine's clock; otherwise the cluster's certificate must be renewed"
    return "the kubeconfig has the certificate authority of another cluster: fetch it again"


def _causes(error: BaseException) -> list[BaseException]:
    """Return the error and its causes, outermost first, each once."""
    causes: list[BaseException] = []
    queue: list[object] = [error]
    while queue:
        item = queue.pop(0)
        if isinstance(item, BaseException) and item not in causes:
            causes.append(item)
            queue += [getattr(item, "reason", None), *item.args, item.__cause__, item.__context__]
    return causes

"""Client for one cluster's API server as one user, with plain dicts and errors from `api_errors`.

All code that reads or changes a cluster uses this client. It does not interpret objects. Every request
has a deadline, and is retried for about ten seconds while the server is busy or unreachable.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from windlass import names
from windlass.kube.client.api_errors import DEFAULT_ENGINE, ClusterError, Conflict, NotFound
from windlass.kube.client.kubeconfig import read_target
from windlass.kube.client.transport import HttpRequest, HttpResponse, Transport
from windlass.kube.client.watch import OnOutage, watch_objects
from windlass.kube.objects.kinds import FIELD_MANAGER, PODS, ObjectKind

if TYPE_CHECKING:
    from windlass.kube.client.forward import PodStream

Object = dict[str, Any]
Objects = list[Object]
Keep = Callable[[Object], Object]
_PAGE = 250
_FORWARD_S = 10.0
_LOG_S = 60.0
_NUM_LISTS = 3
# Reject misspelled fields, which the server would otherwise drop.
_STRICT = {"fieldManager": FIELD_MANAGER, "fieldValidation": "Strict"}


def _keep_all(item: Object) -> Object:
    return item


def connect(
    *,
    context: str = "",
    namespace: str = "",
    engine: str = DEFAULT_ENGINE,
    environ: Mapping[str, str] = os.environ,
) -> Api:
    """Return a client for the kubeconfig's cluster, or for the cluster this pod runs in.

    Sends no request. `engine` is the calling engine, which error hints refer to.
    """
    target = read_target(context=context, namespace=namespace, environ=environ)
    return Api(Transport(target, environ, engine=engine))


class Api:
    """Requests to a cluster. Thread-safe."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self.server = transport.target.server
        self.context = transport.target.context
        self.namespace = transport.target.namespace
        self.engine = transport.where.engine

    def get(self, kind: ObjectKind, name: str, *, namespace: str | None = None) -> Object:
        return self._object("get", "GET", kind, name, namespace=namespace)

    def list(
        self,
        kind: ObjectKind,
        *,
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
        keep: Keep = _keep_all,
    ) -> Objects:
        """Return all matching objects, read page by page."""
        return self.list_at(kind, labels=labels, fields=fields, namespace=namespace, keep=keep)[0]

    def list_at(
        self,
        kind: ObjectKind,
        *,
        labels: str = "",
        fields: str = "",
        namespace: str | None = None,
        is_retried: bool = True,
        keep: Keep = _keep_all,
    ) -> tuple[Objects, str]:
        """Return all matching objects, and the version of the list, from which a watch continues.

        `keep` reduces each object as its page is read, because a thousand complete pods need much memory.
        """
        for tries_left in reversed(range(_NUM_LISTS)):
            try:
                params = {"labelSelector": labels, "fieldSelector": fields, "limit": _PAGE}
                return self._list_pages(
                    kind, params, keep, namespace=namespace, is_retried=is_retried
                )
            except ClusterError as error:
                # Paging took too long, so the list must be restarted.
                if error.code != 410 or not tries_left:
                    raise
        raise AssertionError  # the last attempt returned or raised

    def _list_pages(
        self, kind: ObjectKind, params: Object, keep: Keep, **options: Any
    ) -> tuple[Objects, str]:
        items: Objects = []
        while True:
            page = self._object("list", "GET", kind, params=params, **options)
            # Items of a list lack these fields, which all readers expect.
            items += (
                keep({"apiVersion": kind.api_version, "kind": kind.name, **item})
                for item in page.get("items") or []
            )
            metadata = page.get("metadata") or {}
            if not metadata.get("continue"):
                return items, str(metadata.get("resourceVersion") or "")
            params = {**params, "continue": metadata["continue"]}

    def create(
        self, kind: ObjectKind, body: Object, *, dry_run: bool = False, brief: bool = False
    ) -> Object:
        """Create an object. Raise `Conflict` if it exists. With `brief`, return only its metadata.

        If the response to a create is lost, the retry may find the object that the first request created.
        It identifies that object by a matching `windlass.dev/submit` annotation, and otherwise raises
        `Conflict`. A body with `generateName` is retried only if the first request is known to have had no
        effect, because the retry would create a second object.
        """
        metadata = body.get("metadata") or {}
        name = str(metadata.get("name") or "")
        params = {**_STRICT, "dryRun": "All" if dry_run else ""}
        body = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        try:
            return self._object(
                "create", "POST", kind, name, body=body, params=params,
                is_repeatable=bool(name), is_brief=brief,
            )  # fmt: skip
        except Conflict as error:
            submit = (metadata.get("annotations") or {}).get(names.ANNOTATION_SUBMIT)
            if not (error.was_lost and submit and error.reason == "AlreadyExists"):
                raise
            existing = self.get(kind, name, namespace=metadata.get("namespace"))
            if (existing["metadata"].get("annotations") or {}).get(
                names.ANNOTATION_SUBMIT
            ) != submit:
                raise
            return existing

    def apply(self, kind: ObjectKind, body: Object, *, dry_run: bool = False) -> Object:
        """Create or update an object by server-side apply, taking over conflicting fields of others."""
        name = str((body.get("metadata") or {})["name"])
        params = {
            **_STRICT,
            "force": "true",
            "dryRun": "All" if dry_run else "",
        }
        body = {"apiVersion": kind.api_version, "kind": kind.name, **body}
        return self._object(
            "patch", "PATCH", kind, name, body=body, params=params,
            content_type="application/apply-patch+yaml",
        )  # fmt: skip

    def patch(
        self,
        kind: ObjectKind,
        name: str,
        body: Object,
        *,
        part: str = "",
        brief: bool = False,
    ) -> Object:
        """Apply a JSON merge patch, in which null removes a field."""
        return self._object(
            "patch", "PATCH", kind, name, body=body, part=part, is_brief=brief,
            params={"fieldManager": FIELD_MANAGER}, content_type="application/merge-patch+json",
        )  # fmt: skip

    def delete(
        self,
        kind: ObjectKind,
        name: str,
        *,
        uid: str = "",
        version: str = "",
        grace_s: float | None = None,
    ) -> bool:
        """Delete an object and, in the background, what it owns. Return False if it did not exist.

        With `uid` only that object is deleted, and another one of the same name is a `Conflict`. With
        `version` only that version is deleted. `grace_s` replaces the grace period of a pod.
        """
        body: Object = {"propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = int(grace_s)
        if uid or version:
            seen = {"uid": uid, "resourceVersion": version}
            body["preconditions"] = {key: value for key, value in seen.items() if value}
        try:
            self._object("delete", "DELETE", kind, name, body=body)
        except NotFound as error:
            return error.was_lost
        return True

    def watch(
        self,
        kind: ObjectKind,
        *,
        labels: str = "",
        fields: str = "",
        stop: threading.Event,
        timeout_s: float | None = None,
        on_outage: OnOutage = lambda _error: None,
        keep: Keep = _keep_all,
    ) -> Iterator[tuple[str, Object]]:
        """Yield existing objects as ("ADDED", object), then ("SYNCED", {}), then changes as they happen.

        Ends when `stop` is set or after `timeout_s`. `watch.py` lists the failures that are retried.
        """
        return watch_objects(
            self._transport,
            lambda is_retried: self.list_at(
                kind,
                labels=labels,
                fields=fields,
                is_retried=is_retried,
                keep=keep,
            ),
            HttpRequest(
                method="GET",
                path=kind.path(namespace=self.namespace),
                description=self._describe("watch", kind),
                params={"labelSelector": labels, "fieldSelector": fields},
            ),
            stop=stop,
            timeout_s=timeout_s,
            on_outage=on_outage,
            keep=keep,
        )

    def read_log(
        self,
        pod: str,
        *,
        container: str = "",
        tail_lines: int | None = None,
        limit_bytes: int | None = None,
        since_s: float | None = None,
        timestamps: bool = False,
        timeout_s: float = _LOG_S,
        is_retried: bool = True,
    ) -> bytes:
        """Return a container's output, as far as the node still has it."""
        params = {
            "container": container,
            "tailLines": tail_lines,
            "limitBytes": limit_bytes,
            "sinceSeconds": None if since_s is None else max(1, round(since_s)),
            "timestamps": "true" if timestamps else "",
        }
        return self._send_request(
            "get",
            "GET",
            PODS,
            pod,
            part="log",
            params=params,
            timeout_s=timeout_s,
            is_retried=is_retried,
        ).data

    def request(
        self,
        method: str,
        path: str,
        *,
        body: object = None,
        params: Mapping[str, Any] | None = None,
        timeout_s: float = 10.0,
    ) -> Any:
        """Send any other request by its path, such as a review, `/apis` or `/version`.

        Return the decoded JSON of the response, or its text if it is not JSON.
        """
        is_review = method == "POST" and path.rstrip("/").endswith("reviews")
        request = HttpRequest(
            method=method, path=path, description=f"{method.lower()} {path}", body=body, params=params,
            timeout_s=timeout_s, is_repeatable=method != "POST" or is_review,
        )  # fmt: skip
        data = self._transport.request(request).data
        try:
            return json.loads(data)
        except ValueError:
            return data.decode(errors="replace")

    def forward(self, pod: str, port: int, *, timeout_s: float = _FORWARD_S) -> socket.socket:
        """Return a socket that a thread connects to a port in a pod.

        If nothing listens there, the stream ends immediately, and the reason is logged.
        """
        from windlass.kube.client.forward import open_forward

        path, description = self._forward_request(pod)
        return open_forward(
            self._transport, path, port, description=description, timeout_s=timeout_s
        )

    def open_stream(self, pod: str, port: int, *, timeout_s: float = _FORWARD_S) -> PodStream:
        """Return a stream to a port in a pod, without a thread and therefore faster than `forward`."""
        from windlass.kube.client.forward import open_stream

        path, description = self._forward_request(pod)
        return open_stream(
            self._transport, path, port, description=description, timeout_s=timeout_s
        )

    def _forward_request(self, pod: str) -> tuple[str, str]:
        path = PODS.path(namespace=self.namespace, name=pod, part="portforward")
        return path, self._describe("forward a port of", PODS, pod)

    def _object(self, *args: Any, **options: Any) -> Object:
        data = self._send_request(*args, **options).data
        try:
            answer = json.loads(data)
        except ValueError as error:
            text = " ".join(data[:200].decode(errors="replace").split())
            raise ClusterError(
                f"{self._transport.where} returned a response that is not JSON: {text}",
                hint="check that `server` in the kubeconfig is an API server, not a proxy's login page",
            ) from error
        return answer if isinstance(answer, dict) else {}

    def _send_request(
        self,
        verb: str,
        method: str,
        kind: ObjectKind,
        name: str = "",
        *,
        namespace: str | None = None,
        part: str = "",
        **options: Any,
    ) -> HttpResponse:
        body = options.get("body")
        if namespace is None and isinstance(body, dict):
            namespace = (body.get("metadata") or {}).get("namespace")
        path = kind.path(
            namespace=namespace or self.namespace, name="" if method == "POST" else name, part=part
        )
        description = self._describe(verb, kind, name, namespace, part)
        return self._transport.request(
            HttpRequest(method=method, path=path, description=description, **options)
        )

    def _describe(
        self,
        verb: str,
        kind: ObjectKind,
        name: str = "",
        namespace: str | None = None,
        part: str = "",
    ) -> str:
        what = "/".join(word for word in (kind.plural, name, part) if word)
        place = f" in namespace {namespace or self.namespace}" if kind.namespaced else ""
        return f"{verb} {what}{place}"

"""Watches of objects: a list, then changes, with reconnects after interruptions.

While the server is busy or unreachable, a watch retries with back-off until the caller stops it. Only the
first list can fail like any other request. If the server no longer has the watched version (410), the watch
lists all objects again. It then reports existing objects as ADDED once more, vanished ones as DELETED, and
SYNCED at the end of the list. Objects are not interpreted here.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import urllib3

from windlass.kube.client.api_errors import ClusterError
from windlass.kube.client.transport import HttpRequest, Transport, make_pause_s

logger = logging.getLogger(__name__)

Event = tuple[str, dict[str, Any]]
OnOutage = Callable[[ClusterError | None], None]
ReadList = Callable[[bool], tuple[list[dict[str, Any]], str]]
# The server ends each request after this time. After a much longer silence the connection counts as dead.
_ROUND_S = 60.0
_LONGEST_SILENCE_S = _ROUND_S + 15.0
_SHORTEST_ROUND_S = 0.5
_LOOK_S = 1.0


@dataclass(slots=True)
class _Seen:
    """State of a watch: the version from which to resume, and the known objects."""

    version: str = ""
    objects: dict[str, dict[str, Any]] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        kind, thing = event
        metadata = thing.get("metadata") or {}
        self.version = str(metadata.get("resourceVersion") or self.version)
        if kind == "DELETED":
            self.objects.pop(str(metadata.get("uid")), None)
        elif kind in ("ADDED", "MODIFIED"):
            self.objects[str(metadata.get("uid"))] = thing


def watch_objects(
    transport: Transport,
    read_list: ReadList,
    request: HttpRequest,
    *,
    stop: threading.Event,
    timeout_s: float | None,
    on_outage: OnOutage = lambda _error: None,
    keep: Callable[[dict[str, Any]], dict[str, Any]] = lambda thing: thing,
) -> Iterator[Event]:
    """Yield events until `stop` is set or `timeout_s` has passed.

    `on_outage` is called with each error that is retried, and with None once the watch is connected again.
    `keep` reduces changed objects, while `read_list` reduces listed ones itself.
    """
    end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    seen = _Seen()
    if stop.is_set():
        return
    yield from _list(read_list, seen, is_retried=True)
    num_failures = 0
    while not stop.is_set() and (left_s := end_s - time.monotonic()) > 0:
        try:
            if not seen.version:
                yield from _list(read_list, seen, is_retried=False)
            started_s, is_empty = time.monotonic(), True
            for kind, thing in _read_round(
                transport, request, seen, stop=stop, left_s=left_s, on_outage=on_outage
            ):
                event = (kind, keep(thing))
                seen.note(event)
                num_failures, is_empty = 0, False
                yield event
                if stop.is_set():
                    return
            if is_empty and time.monotonic() - started_s < _SHORTEST_ROUND_S:
                # A proxy may end each watch immediately, so avoid a busy loop.
                num_failures += 1
                _pause(stop, make_pause_s(num_failures), end_s)
        except ClusterError as error:
            if error.code == 410:
                seen.version = ""
            elif not error.retryable:
                raise
            else:
                on_outage(error)
            logger.info("watch is interrupted: %s", error.message)
            num_failures += 1
            _pause(stop, make_pause_s(num_failures, asked_s=error.retry_after_s), end_s)


def _pause(stop: threading.Event, pause_s: float, end_s: float) -> None:
    stop.wait(max(0.0, min(pause_s, end_s - time.monotonic())))


def _list(read_list: ReadList, seen: _Seen, *, is_retried: bool) -> Iterator[Event]:
    """Yield all objects. Only the first list uses the request's own retries: later ones must check `stop`."""
    things, version = read_list(is_retried)
    before = seen.objects
    seen.objects = {str(thing["metadata"]["uid"]): thing for thing in things}
    seen.version = version
    for uid in before.keys() - seen.objects.keys():
        yield "DELETED", before[uid]
    for thing in things:
        yield "ADDED", thing
    yield "SYNCED", {}


def _read_round(
    transport: Transport,
    request: HttpRequest,
    seen: _Seen,
    *,
    stop: threading.Event,
    left_s: float,
    on_outage: OnOutage,
) -> Iterator[Event]:
    """Yield the events of one request. Raise if the server does not end the request normally."""
    round_s = max(1, int(min(_ROUND_S, left_s)))
    params = {
        **(request.params or {}),
        "watch": "true",
        "allowWatchBookmarks": "true",
        "resourceVersion": seen.version,
        "timeoutSeconds": round_s,
    }
    with transport.open(
        replace(request, params=params), read_timeout_s=min(_LONGEST_SILENCE_S, left_s + 1.0)
    ) as response, _cut_when(stop, response, left_s):  # fmt: skip
        on_outage(None)
        rest = b""
        while not stop.is_set() and (data := response.read1(1 << 16)):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                event = _read_event(line, request)
                seen.note(event)
                if event[0] != "BOOKMARK":
                    yield event


def _read_event(line: bytes, request: HttpRequest) -> Event:
    try:
        event = json.loads(line)
        kind, thing = str(event["type"]), event["object"]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(
            f"could not {request.description}: received a malformed event", code=500
        ) from error
    if kind == "ERROR":
        code = int(thing.get("code") or 500)
        text = thing.get("message") or "no reason given"
        raise ClusterError(f"could not {request.description}: {text}", code=code)
    return kind, thing


@contextmanager
def _cut_when(
    stop: threading.Event, response: urllib3.BaseHTTPResponse, left_s: float
) -> Iterator[None]:
    """Shut the connection down as soon as `stop` is set, since a blocked read does not check it."""
    is_over = threading.Event()
    end_s = time.monotonic() + left_s

    def cut() -> None:
        while not is_over.is_set():
            if (
                stop.wait(max(0.0, min(_LOOK_S, end_s - time.monotonic())))
                or time.monotonic() >= end_s
            ):
                try:
                    response.shutdown()
                except (OSError, RuntimeError, ValueError):
                    pass  # already ended
                return

    threading.Thread(target=cut, name="windlass-watch", daemon=True).start()
    try:
        yield
    finally:
        is_over.set()

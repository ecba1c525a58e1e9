"""A small API server with a Job, pods and their logs, for states that no healthy cluster has on demand.

Objects can be listed and watched. A test can make the server unavailable for a while, and sees all requests.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from kube.api_server import Answer, ApiServer, Seen, refuse

from windlass import names
from windlass.engines.dialects.kubernetes import LABEL_INDEX

Object = dict[str, Any]
Server = TypeVar("Server", bound="FakeCluster")


class FakeCluster(ApiServer):
    """Server that holds objects by kind. A list returns the current objects, and a watch only waits."""

    def __init__(self) -> None:
        super().__init__([Answer(body={})], 0)
        self.objects: dict[str, list[Object]] = {}
        self.logs: dict[str, bytes] = {}
        self.user = "somebody"  # the name the server returns for every user
        self.is_away = False
        self.version = 1  # a watch from any other version has to list again
        self._held = threading.Event()

    def go_away(self) -> None:
        """Stop answering requests, and drop the pending ones."""
        self.is_away = True
        self.change()

    def change(self) -> None:
        """End the pending watches, so all clients list again."""
        held, self._held = self._held, threading.Event()
        held.set()

    def next_answer(self, seen: Seen) -> Answer:
        with self.lock:
            self.seen.append(seen)
        if self.is_away:
            return Answer(cut=True)
        if seen.path.endswith("/log"):
            return self._find_log(seen.path.split("/")[-2])
        if seen.path.endswith("/selfsubjectreviews"):
            return Answer(body={"status": {"userInfo": {"username": self.user}}})
        if seen.method != "GET":
            return Answer(body={"kind": "Status", "status": "Success"})
        if "watch" in seen.params:
            if seen.params.get("resourceVersion") != str(self.version):
                return refuse(410, "Expired", "too old resource version")
            return Answer(lines=(), hold=self._held)
        folder, _, last = seen.path.rpartition("/")
        named = [one for one in self.objects.get(folder.rpartition("/")[2], []) if _is(one, last)]
        if named:
            return Answer(body=named[0])
        items = self.objects.get(last, [])
        return Answer(body={"items": items, "metadata": {"resourceVersion": str(self.version)}})

    def _find_log(self, pod: str) -> Answer:
        if pod not in self.logs:
            return refuse(404, "NotFound", f'pods "{pod}" not found')
        return Answer(body=self.logs[pod])


def _is(thing: Object, name: str) -> bool:
    return bool(thing["metadata"].get("name") == name)


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """Run a server in a thread while the context is open."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.change()
            server.shutdown()
            thread.join(10.0)


def fake_cluster() -> AbstractContextManager[FakeCluster]:
    return serving(FakeCluster())


def make_fake_job(name: str, *conditions: Object, at: str = "2026-01-31T12:00:00Z") -> Object:
    """Return a Job with these conditions, all true since `at`."""
    rendered = [
        {"status": "True", "lastTransitionTime": at, **condition} for condition in conditions
    ]
    return {
        "metadata": {"name": name, "uid": "j", "creationTimestamp": at},
        "spec": {"parallelism": 1},
        "status": {"conditions": rendered},
    }


def make_fake_pod(name: str, index: int = 0, **state: Object) -> Object:
    """Return a pod whose container is in this state."""
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "creationTimestamp": "2026-01-31T12:00:00Z",
            "labels": {LABEL_INDEX: str(index)},
            "ownerReferences": [{"kind": "Job", "uid": "j", "controller": True}],
        },
        "spec": {"nodeName": "n1", "containers": [{"name": names.CONTAINER}]},
        "status": {
            "phase": "Succeeded",
            "containerStatuses": [{"name": names.CONTAINER, "state": state}],
        },
    }

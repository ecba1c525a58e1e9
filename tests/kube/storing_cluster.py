"""A fake cluster that stores objects: they can be created, patched, listed, watched and deleted.

Deleting an object also deletes the objects it owns, like Kubernetes' garbage collector. A test can make it
refuse the creation of one kind, and choose the API versions it serves.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

from kube.api_server import Answer, Seen, refuse
from kube.fake_cluster import FakeCluster, serving

Object = dict[str, Any]

_EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


class StoringCluster(FakeCluster):
    """Cluster with one namespace. Kinds are identified by their plural."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = ""  # plural of the objects that cannot be created
        self.refusals: dict[tuple[str, str], Answer] = {}  # (method, end of the path) -> answer
        # plurals by API version. Other versions are not served.
        self.served: dict[str, list[str]] = {}
        self._writing = threading.RLock()
        self._num_made = 0

    def next_answer(self, seen: Seen) -> Answer:
        for (method, ending), answer in self.refusals.items():
            if seen.method == method and seen.path.endswith(ending):
                with self.lock:
                    self.seen.append(seen)
                return answer
        if seen.path.endswith("/selfsubjectrulesreviews"):
            return Answer(body={"status": {"resourceRules": [_EVERYTHING]}})
        if seen.path.endswith("/selfsubjectaccessreviews"):
            return Answer(body={"status": {"allowed": True}})
        if seen.method == "GET" and seen.path.startswith("/apis/") and "/space/" not in seen.path:
            return self._answer_version(seen.path)
        with self._writing:
            if seen.method == "GET":
                return self._find(seen)
            with self.lock:
                self.seen.append(seen)
            answer = {"POST": self._create, "PATCH": self._patch, "DELETE": self._delete}
            made = answer[seen.method](seen)
            self.version += 1
        self.change()
        return made

    def _answer_version(self, path: str) -> Answer:
        version = path.removeprefix("/apis/")
        if version in self.served:
            return Answer(body={"resources": [{"name": name} for name in self.served[version]]})
        versions = [{"groupVersion": one} for one in self.served if one.startswith(f"{version}/")]
        return Answer(body={"versions": versions}) if versions else refuse(404, "NotFound", path)

    def _find(self, seen: Seen) -> Answer:
        folder, _, name = seen.path.rpartition("/")
        if not folder.endswith("/space") and not folder.endswith("/log"):
            plural = folder.rpartition("/")[2]
            if plural in self.objects and all(
                one["metadata"]["name"] != name for one in self.objects[plural]
            ):
                return refuse(404, "NotFound", f'{plural} "{name}" not found')
        return super().next_answer(seen)

    def _create(self, seen: Seen) -> Answer:
        plural = seen.path.rpartition("/")[2]
        if plural == self.refused:
            return refuse(422, "Invalid", f"{plural} are refused here")
        self._num_made += 1
        # times have whole seconds, so each object gets a different one
        made_s = time.time() + self._num_made
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(made_s))
        meta = {**seen.body["metadata"], "uid": f"uid-{self._num_made}", "creationTimestamp": at}
        body = {**seen.body, "metadata": meta}
        self.objects.setdefault(plural, []).append(body)
        return Answer(status=201, body=body)

    def _patch(self, seen: Seen) -> Answer:
        folder, _, name = seen.path.removesuffix("/status").rpartition("/")
        there = self.objects.get(folder.rpartition("/")[2], [])
        for at, body in enumerate(there):
            if body["metadata"]["name"] == name:
                there[at] = merge(body, seen.body)
                return Answer(body=there[at])
        return refuse(404, "NotFound", name)

    def _delete(self, seen: Seen) -> Answer:
        folder, _, name = seen.path.rpartition("/")
        there = self.objects.get(folder.rpartition("/")[2], [])
        gone = {one["metadata"]["uid"] for one in there if one["metadata"]["name"] == name}
        if not gone:
            return refuse(404, "NotFound", name)
        for plural, bodies in self.objects.items():
            self.objects[plural] = [one for one in bodies if not gone & {*_uids(one)}]
        return Answer(body={"kind": "Status", "status": "Success"})

    def put(self, plural: str, *bodies: Object) -> None:
        """Replace all objects of a kind."""
        with self._writing:
            self.objects[plural] = list(bodies)
            self.version += 1
        self.change()

    def names(self) -> list[str]:
        """Return all objects as PLURAL/NAME."""
        return sorted(
            f"{plural}/{one['metadata']['name']}"
            for plural, bodies in self.objects.items()
            for one in bodies
        )


def _uids(body: Object) -> Iterator[str]:
    yield body["metadata"]["uid"]
    yield from (owner["uid"] for owner in body["metadata"].get("ownerReferences") or ())


def merge(body: Any, patch: Any) -> Any:
    """Apply a JSON merge patch."""
    if not isinstance(patch, dict):
        return patch
    merged = dict(body) if isinstance(body, dict) else {}
    for key, value in patch.items():
        if value is None:
            merged.pop(key, None)
        else:
            merged[key] = merge(merged.get(key), value)
    return merged


def storing_cluster() -> AbstractContextManager[StoringCluster]:
    return serving(StoringCluster())

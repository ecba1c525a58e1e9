"""Watches that survive everything that ends a connection."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from kube.api_server import Answer, ApiServer, connect_to, refuse, serve
from waits import wait_for

from windlass.kube.client.api_errors import ClusterError, Forbidden, Unreachable
from windlass.kube.objects.kinds import PODS

Pod = dict[str, Any]


def make_pod(name: str, version: int = 1) -> Pod:
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version)}}


def make_list(version: int, *names: str) -> Answer:
    items = [make_pod(name) for name in names]
    return Answer(body={"items": items, "metadata": {"resourceVersion": str(version)}})


def make_lines(*events: tuple[str, Pod], hold: threading.Event | None = None) -> Answer:
    return Answer(lines=tuple({"type": kind, "object": pod} for kind, pod in events), hold=hold)


def take(server: ApiServer, folder: Path, num_events: int) -> list[tuple[str, str]]:
    """Return the first events as kind and name, then stop the watch."""
    stop = threading.Event()
    found = []
    for kind, pod in connect_to(server.url, folder).watch(
        PODS, labels="a=b", stop=stop, timeout_s=20.0
    ):
        found.append((kind, pod.get("metadata", {}).get("name", "")))
        if len(found) == num_events:
            stop.set()
    return found


def test_a_list_then_changes(tmp_path: Path) -> None:
    with serve(
        make_list(5, "a"), make_lines(("MODIFIED", make_pod("a", 6)), ("ADDED", make_pod("b", 7)))
    ) as server:
        found = take(server, tmp_path, 4)
    assert found == [("ADDED", "a"), ("SYNCED", ""), ("MODIFIED", "a"), ("ADDED", "b")]
    assert server.seen[1].params["resourceVersion"] == "5"
    assert server.seen[1].params["labelSelector"] == "a=b"


@pytest.mark.parametrize(
    "trouble",
    [
        Answer(cut=True),
        refuse(503, "", "away"),
        refuse(429, "", "slow"),
        Answer(lines=(b'{"type": "AD',)),
    ],
)
def test_watch_resumes_at_its_version(tmp_path: Path, trouble: Answer) -> None:
    bookmark = ("BOOKMARK", make_pod("", 9))
    with serve(
        make_list(5), make_lines(("ADDED", make_pod("a", 6)), bookmark), trouble,
        make_lines(("DELETED", make_pod("a", 10))),
    ) as server:  # fmt: skip
        found = take(server, tmp_path, 3)
    assert found == [("SYNCED", ""), ("ADDED", "a"), ("DELETED", "a")]
    assert [seen.params.get("resourceVersion") for seen in server.seen[1:4]] == ["5", "9", "9"]


def test_server_that_was_unavailable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "windlass.kube.client.watch")
    stop = threading.Event()
    found: list[str] = []
    with serve(make_list(5), make_lines(("ADDED", make_pod("a", 6)))) as server:
        watching = connect_to(server.url, tmp_path).watch(PODS, stop=stop, timeout_s=60.0)
        assert [next(watching)[0], next(watching)[0]] == ["SYNCED", "ADDED"]
    reader = threading.Thread(target=lambda: found.append(next(watching)[0]), daemon=True)
    reader.start()
    wait_for(lambda: "connection refused" in caplog.text, "it noticed", 10.0)
    with serve(make_lines(("DELETED", make_pod("a", 7))), port=server.server_port) as back:
        reader.join(20.0)
    assert found == ["DELETED"]
    assert back.seen[0].params["resourceVersion"] == "6"
    watching.close()


GONE = {"code": 410, "reason": "Expired", "message": "too old resource version"}


@pytest.mark.parametrize("gone", [refuse(410, "Expired", "too old"), make_lines(("ERROR", GONE))])
def test_expired_version_is_listed_again(tmp_path: Path, gone: Answer) -> None:
    with serve(
        make_list(5, "a", "b"), gone, make_list(50, "b", "c"),
        make_lines(("MODIFIED", make_pod("c", 51))),
    ) as server:  # fmt: skip
        found = take(server, tmp_path, 8)
    assert found[:3] == [("ADDED", "a"), ("ADDED", "b"), ("SYNCED", "")]
    assert found[3:] == [
        ("DELETED", "a"), ("ADDED", "b"), ("ADDED", "c"), ("SYNCED", ""), ("MODIFIED", "c"),
    ]  # fmt: skip
    assert server.seen[3].params["resourceVersion"] == "50"


def test_stop_ends_an_idle_watch_immediately(tmp_path: Path) -> None:
    hold, stop = threading.Event(), threading.Event()
    with serve(make_list(5), make_lines(hold=hold)) as server:
        watching = connect_to(server.url, tmp_path).watch(PODS, stop=stop)
        assert next(watching) == ("SYNCED", {})
        timer = threading.Timer(0.2, stop.set)
        timer.start()
        started_s = time.monotonic()
        assert list(watching) == []
        assert time.monotonic() - started_s < 2.0
        hold.set()


def test_watch_ends_at_its_timeout(tmp_path: Path) -> None:
    hold = threading.Event()
    with serve(make_list(5), make_lines(hold=hold)) as server:
        started_s = time.monotonic()
        events = list(
            connect_to(server.url, tmp_path).watch(PODS, stop=threading.Event(), timeout_s=0.5)
        )
        assert events == [("SYNCED", {})]
        assert 0.4 < time.monotonic() - started_s < 3.0
        hold.set()


def test_a_server_that_ends_each_watch_is_not_hammered(tmp_path: Path) -> None:
    with serve(make_list(5), make_lines()) as server:
        list(connect_to(server.url, tmp_path).watch(PODS, stop=threading.Event(), timeout_s=1.5))
    assert 3 <= len(server.seen) < 15


def test_revoked_right_ends_the_watch(tmp_path: Path) -> None:
    text = 'pods is forbidden: User "u" cannot watch resource "pods" in API group "" in the namespace "space"'
    with (
        serve(make_list(5), refuse(403, "Forbidden", text)) as server,
        pytest.raises(Forbidden, match="you may not watch pods in namespace space"),
    ):
        take(server, tmp_path, 9)


def test_the_first_list_may_fail(tmp_path: Path) -> None:
    stop = threading.Event()
    with pytest.raises(Unreachable):
        next(connect_to("http://127.0.0.1:1", tmp_path, retry_for_s=0.0).watch(PODS, stop=stop))


def test_permanent_error_ends_the_watch(tmp_path: Path) -> None:
    error = ("ERROR", {"code": 403, "message": "no more"})
    with (
        serve(make_list(5), make_lines(error)) as server,
        pytest.raises(ClusterError, match="no more"),
    ):
        take(server, tmp_path, 9)

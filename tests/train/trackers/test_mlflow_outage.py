"""Outages of the MLflow server. No logged record is lost or duplicated."""

from __future__ import annotations

import json
import socket
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from windlass.train.trackers import make_trackers, tracker_group


class Runs:
    """Records of an MLflow server that stops and starts again on the same port."""

    def __init__(self) -> None:
        self.points: list[tuple[str, int, int, float]] = []
        self.statuses: dict[str, str] = {}
        # Binding while the server is down keeps the system from giving the port to another connection.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self.port: int = self._reserved.getsockname()[1]

    def close(self) -> None:
        self._reserved.close()

    def losses(self) -> list[tuple[int, float]]:
        return sorted((step, value) for key, _, step, value in self.points if key == "loss")

    def answer(self, path: str, query: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
        if path == "experiments/get-by-name":
            return {"experiment": {"experiment_id": "1"}}
        if path == "runs/create":
            self.statuses["run-1"] = "RUNNING"
            return {"run": {"info": {"run_id": "run-1"}}}
        if path == "runs/get":
            return {"run": {"info": {"lifecycle_stage": "active"}, "data": {}}}
        if path == "runs/update":
            self.statuses[body["run_id"]] = body["status"]
        elif path == "runs/log-batch":
            self.points += [
                (one["key"], one["timestamp"], one["step"], one["value"]) for one in body["metrics"]
            ]
        elif path == "metrics/get-history":
            of_key = [one for one in self.points if one[0] == query["metric_key"]]
            return {"metrics": [{"timestamp": at, "step": step} for _, at, step, _ in of_key]}
        return {}

    @contextmanager
    def served(self) -> Iterator[None]:
        with _Server(("127.0.0.1", self.port), _Handler) as server:
            server.runs = self
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield
            server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    runs: Runs


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        answer = self.server.runs.answer(
            parts.path.removeprefix("/api/2.0/mlflow/"),
            dict(urllib.parse.parse_qsl(parts.query)),
            json.loads(body or b"{}"),
        )
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    runs = Runs()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{runs.port}")
    monkeypatch.delenv("MLFLOW_RUN_ID", raising=False)
    monkeypatch.setenv("no_proxy", "*")
    yield runs
    runs.close()


def attempt(folder: Path, number: int) -> Any:
    return make_trackers("mlflow", folder=folder, run="a", rank=0, world_size=1, attempt=number)


def log(group: Any, steps: range) -> None:
    for step in steps:
        group.log({"loss": float(step), "lr": 0.1}, step=step)


def test_records_kept_by_an_outage_at_the_end_are_sent_at_the_next_start(
    tmp_path: Path, runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    with runs.served():
        first = attempt(tmp_path, 0)
        first.start({})
        log(first, range(3))
        first._queues[1].send_soon()
        first._queues[1].wait_until_sent(30)
    log(first, range(3, 6))
    first.close(timeout_s=1.2)
    assert runs.losses() == [(step, float(step)) for step in range(3)]
    assert runs.statuses == {"run-1": "RUNNING"}
    assert "in metrics.jsonl, from which the next start of this run sends them" in caplog.text
    with runs.served():
        second = attempt(tmp_path, 1)
        second.start({})
        log(second, range(6, 8))
        second.close(timeout_s=30)
    assert runs.losses() == [(step, float(step)) for step in range(8)]
    assert runs.statuses == {"run-1": "FINISHED"}


def test_server_that_was_never_up_gets_everything_at_the_next_start(
    tmp_path: Path, runs: Runs
) -> None:
    first = attempt(tmp_path, 0)
    first.start({})
    log(first, range(4))
    first.close(timeout_s=1.2)
    with runs.served():
        second = attempt(tmp_path, 1)
        second.start({})
        second.close(timeout_s=30)
    assert runs.losses() == [(step, float(step)) for step in range(4)]
    assert runs.statuses == {"run-1": "FINISHED"}


def test_server_that_returns_before_close_ends_gets_everything(tmp_path: Path, runs: Runs) -> None:
    group = attempt(tmp_path, 0)
    group.start({})
    log(group, range(4))
    closing = threading.Thread(target=group.close, kwargs={"timeout_s": 60})
    closing.start()
    with runs.served():
        closing.join()
    assert runs.losses() == [(step, float(step)) for step in range(4)]
    assert runs.statuses == {"run-1": "FINISHED"}


def test_records_that_the_queue_dropped_are_sent_at_the_end(
    tmp_path: Path, runs: Runs, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = attempt(tmp_path, 0)
    jsonl, mlflow = group._queues
    mlflow._max_queued = 5
    group.start({})
    log(group, range(20))
    assert mlflow.num_dropped == 15
    jsonl.send_soon()
    jsonl.wait_until_sent(30)
    monkeypatch.setattr(tracker_group, "_SHORTEST_PAUSE_S", 0.05)
    with runs.served():
        group.close(timeout_s=60)
    assert runs.losses() == [(step, float(step)) for step in range(20)]
    assert runs.statuses == {"run-1": "FINISHED"}

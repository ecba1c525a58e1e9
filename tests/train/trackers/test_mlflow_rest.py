"""REST client of MLflow against a server with scripted answers."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from windlass.train.trackers.mlflow_store import MlflowBatch, MlflowMetric, MlflowRefused, RestStore


class ScriptedMlflow(ThreadingHTTPServer):
    """Server that answers (status, body) in turn, and records requests."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, Any, str]] = []


class _Handler(BaseHTTPRequestHandler):
    server: ScriptedMlflow

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        path = self.path.removeprefix("/base/api/2.0/mlflow/")
        self.server.asked.append(
            (path, json.loads(body or b"null"), self.headers.get("Authorization", ""))
        )
        status, answer = self.server.answers.pop(0)
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        if status == 302:
            self.send_header("Location", answer)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[ScriptedMlflow]:
    with ScriptedMlflow() as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def store_of(server: ScriptedMlflow, *, user: str = "", **env: str) -> RestStore:
    return RestStore(f"http://{user}127.0.0.1:{server.server_port}/base/", env)


def test_experiment_created_concurrently_is_used(server: ScriptedMlflow) -> None:
    server.answers = [
        (404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}),
        (400, {"error_code": "RESOURCE_ALREADY_EXISTS", "message": "there"}),
        (200, {"experiment": {"experiment_id": "7"}}),
        (200, {"run": {"info": {"run_id": "abc"}}}),
    ]
    assert store_of(server).create_run("my runs", name="r", tags={"a": "b"}) == "abc"
    assert server.asked[0][0] == "experiments/get-by-name?experiment_name=my%20runs"
    path, body, _ = server.asked[3]
    assert path == "runs/create"
    assert (body["experiment_id"], body["tags"]) == ("7", [{"key": "a", "value": "b"}])


def test_nan_and_infinity_are_sent_as_protobuf_writes_them(server: ScriptedMlflow) -> None:
    server.answers = [(200, {})]
    values = [1.5, float("nan"), float("inf"), float("-inf")]
    metrics = [MlflowMetric(key="x", value=v, timestamp_ms=1, step=2) for v in values]
    store_of(server).log_batch("r", MlflowBatch(metrics=metrics))
    sent = [metric["value"] for metric in server.asked[0][1]["metrics"]]
    assert sent == [1.5, "NaN", "Infinity", "-Infinity"]


@pytest.mark.parametrize("status", [429, 500, 503])
def test_transient_failures_raise_os_error(server: ScriptedMlflow, status: int) -> None:
    server.answers = [(status, "busy")]
    with pytest.raises(ConnectionError, match=f"returned {status}: busy"):
        store_of(server).set_status("r", "FINISHED")


def test_rejections_include_the_server_message(server: ScriptedMlflow) -> None:
    server.answers = [(403, "Invalid Host header"), (200, "<html>")]
    with pytest.raises(MlflowRefused, match="refuses runs/update: 403 Invalid Host header"):
        store_of(server).set_status("r", "FINISHED")
    with pytest.raises(MlflowRefused, match="the response is not MLflow's"):
        store_of(server).set_status("r", "FINISHED")


def test_unreachable_server_raises_os_error(server: ScriptedMlflow) -> None:
    store = RestStore("http://127.0.0.1:1", {})
    with pytest.raises(
        ConnectionError, match=r"cannot reach the MLflow server at http://127\.0\.0\.1:1"
    ):
        store.read_params("r")


def test_missing_or_deleted_run_is_none(server: ScriptedMlflow) -> None:
    server.answers = [
        (404, {"error_code": "RESOURCE_DOES_NOT_EXIST", "message": "no"}),
        (200, {"run": {"info": {"lifecycle_stage": "deleted"}, "data": {}}}),
    ]
    store = store_of(server)
    assert store.read_params("r") is None
    assert store.read_params("r") is None


@pytest.mark.parametrize(
    ("user", "env", "expected"),
    [
        ("", {}, ""),
        ("", {"MLFLOW_TRACKING_TOKEN": "t0"}, "Bearer t0"),
        ("me:p%40ss@", {}, "Basic " + base64.b64encode(b"me:p@ss").decode()),
        (
            "",
            {"MLFLOW_TRACKING_USERNAME": "me", "MLFLOW_TRACKING_PASSWORD": "x"},
            "Basic " + base64.b64encode(b"me:x").decode(),
        ),
    ],
)
def test_credentials_are_read_as_by_mlflow_client(
    server: ScriptedMlflow, user: str, env: dict[str, str], expected: str
) -> None:
    server.answers = [(200, {})]
    store_of(server, user=user, **env).set_status("r", "RUNNING")
    assert server.asked[0][2] == expected


def test_credentials_are_not_sent_on_redirect_to_another_server(server: ScriptedMlflow) -> None:
    with ScriptedMlflow() as other:
        threading.Thread(target=other.serve_forever, args=(0.01,), daemon=True).start()
        address = f"http://127.0.0.1:{other.server_port}"
        server.answers = [(302, f"{address}/base/api/2.0/mlflow/stolen")]
        other.answers = [(200, {})]
        with pytest.raises(MlflowRefused, match=f"the server redirects to {address}"):
            store_of(server, MLFLOW_TRACKING_TOKEN="secret").read_params("abc")
        other.shutdown()
    assert other.asked == []


def test_a_redirect_within_the_server_is_followed(server: ScriptedMlflow) -> None:
    run = {"info": {"lifecycle_stage": "active"}, "data": {"params": [{"key": "a", "value": "1"}]}}
    server.answers = [(302, "/base/api/2.0/mlflow/moved"), (200, {"run": run})]
    assert store_of(server, MLFLOW_TRACKING_TOKEN="secret").read_params("abc") == {"a": "1"}
    assert server.asked[1] == ("moved", None, "Bearer secret")


def test_a_history_is_read_to_its_end(server: ScriptedMlflow) -> None:
    point = {"key": "loss", "value": 1.0, "timestamp": "1700000000001", "step": 3}
    server.answers = [
        (200, {"metrics": [point], "next_page_token": "more"}),
        (200, {"metrics": [{**point, "step": 4}]}),
    ]
    assert store_of(server).read_history("abc", "loss") == {
        (1700000000001, 3),
        (1700000000001, 4),
    }
    assert server.asked[1][0].endswith("page_token=more")

"""Stores of the MLflow tracker's runs: a server by its REST interface, or a database by the `mlflow` library.

A server needs only the standard library, so an image needs no `mlflow`. The module makes seven calls of the
documented interface (api/2.0/mlflow). It reads addresses and keys from the same variables as MLflow's client:
MLFLOW_TRACKING_USERNAME and _PASSWORD, MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_INSECURE_TLS and
_SERVER_CERT_PATH.

Transient failures raise OSError, and rejected requests raise MlflowRefused. Only the library can open
databases (sqlite, postgresql ...). Called from the tracker's thread.
"""

from __future__ import annotations

import base64
import http.client
import json
import math
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from windlass.errors import EngineError

_TIMEOUT_S = 20.0
_POINTS_AT_ONCE = 25_000  # page size of a metric's history, MLflow's limit
_RETRIED_CODES = frozenset({408, 425, 429})
_MISSING = "RESOURCE_DOES_NOT_EXIST"
_EXISTS = "RESOURCE_ALREADY_EXISTS"


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowMetric:
    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowBatch:
    """Up to 1000 metrics, 100 params and 100 tags, which is MLflow's limit per request."""

    metrics: Sequence[MlflowMetric] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class MlflowStore(Protocol):
    """Store of runs by id. `read_params` returns None for a run that no longer exists."""

    def create_run(self, experiment: str, *, name: str, tags: Mapping[str, str]) -> str: ...

    def read_params(self, run_id: str) -> dict[str, str] | None: ...

    def log_batch(self, run_id: str, batch: MlflowBatch) -> None: ...

    def set_status(self, run_id: str, status: str) -> None: ...

    def read_history(self, run_id: str, key: str) -> set[tuple[int, int]]:
        """Return the timestamp (in ms) and step of each logged value of a metric."""


class LibraryStore:
    """Store that uses `mlflow.MlflowClient`."""

    def __init__(self, mlflow: Any, uri: str) -> None:
        self._mlflow = mlflow
        self._uri = uri
        self._opened: Any = None

    @property
    def _client(self) -> Any:
        if self._opened is None:  # the first use of a database creates its tables
            self._opened = self._mlflow.MlflowClient(tracking_uri=self._uri)
        return self._opened

    def create_run(self, experiment: str, *, name: str, tags: Mapping[str, str]) -> str:
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else self._client.create_experiment(experiment)
        run = self._client.create_run(experiment_id, run_name=name, tags=dict(tags))
        return str(run.info.run_id)

    def read_params(self, run_id: str) -> dict[str, str] | None:
        try:
            run = self._client.get_run(run_id)
        except self._mlflow.exceptions.MlflowException as error:
            if error.error_code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise
        return dict(run.data.params) if run.info.lifecycle_stage == "active" else None

    def log_batch(self, run_id: str, batch: MlflowBatch) -> None:
        entities = self._mlflow.entities
        self._client.log_batch(
            run_id,
            metrics=[
                entities.Metric(m.key, m.value, m.timestamp_ms, m.step) for m in batch.metrics
            ],
            params=[entities.Param(key, value) for key, value in batch.params.items()],
            tags=[entities.RunTag(key, value) for key, value in batch.tags.items()],
        )

    def read_history(self, run_id: str, key: str) -> set[tuple[int, int]]:
        history = self._client.get_metric_history(run_id, key)
        return {(int(point.timestamp), int(point.step)) for point in history}

    def set_status(self, run_id: str, status: str) -> None:
        if status == "RUNNING":
            self._client.update_run(run_id, status=status)
        else:
            self._client.set_terminated(run_id, status=status, end_time=int(time.time() * 1000))


class MlflowRefused(EngineError):
    """Request that the MLflow server rejected. `code` is MLflow's error code."""

    code = ""


class _RedirectedAway(Exception):
    """Redirect to another server, which must not get the key."""

    def __init__(self, server: str) -> None:
        super().__init__(server)
        self.server = server


class _SameServer(urllib.request.HTTPRedirectHandler):
    """Handler of redirects within the server only, because urllib would forward the Authorization header."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        if _server_of(newurl) != _server_of(req.full_url):
            raise _RedirectedAway(_server_of(newurl))
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _server_of(url: str) -> str:
    parts = urllib.parse.urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2].lower()}"


class RestStore:
    """Store of runs on one server."""

    def __init__(self, url: str, env: Mapping[str, str]) -> None:
        parts = urllib.parse.urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        self._url = urllib.parse.urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", ""))
        self._headers = {"Content-Type": "application/json", **_authorization(parts, env)}
        handlers: list[urllib.request.BaseHandler] = [_SameServer()]
        if parts.scheme == "https":
            handlers.append(urllib.request.HTTPSHandler(context=_tls_of(env)))
        self._opener = urllib.request.build_opener(*handlers)

    def create_run(self, experiment: str, *, name: str, tags: Mapping[str, str]) -> str:
        answer = self._call(
            "runs/create",
            {
                "experiment_id": self._experiment_id(experiment),
                "run_name": name,
                "start_time": _now_ms(),
                "tags": _pairs(tags),
            },
        )
        return str(answer["run"]["info"]["run_id"])

    def read_params(self, run_id: str) -> dict[str, str] | None:
        try:
            run = self._call(f"runs/get?run_id={urllib.parse.quote(run_id)}")["run"]
        except MlflowRefused as error:
            if error.code == _MISSING:
                return None
            raise
        if run["info"].get("lifecycle_stage", "active") != "active":
            return None
        return {pair["key"]: pair["value"] for pair in run["data"].get("params", [])}

    def log_batch(self, run_id: str, batch: MlflowBatch) -> None:
        metrics = [
            {
                "key": m.key,
                "value": _json_number(m.value),
                "timestamp": m.timestamp_ms,
                "step": m.step,
            }
            for m in batch.metrics
        ]
        body = {"run_id": run_id, "metrics": metrics}
        self._call(
            "runs/log-batch", {**body, "params": _pairs(batch.params), "tags": _pairs(batch.tags)}
        )

    def set_status(self, run_id: str, status: str) -> None:
        end = {} if status == "RUNNING" else {"end_time": _now_ms()}
        self._call("runs/update", {"run_id": run_id, "status": status, **end})

    def read_history(self, run_id: str, key: str) -> set[tuple[int, int]]:
        query = {"run_id": run_id, "metric_key": key, "max_results": _POINTS_AT_ONCE}
        points: set[tuple[int, int]] = set()
        while True:
            answer = self._call(f"metrics/get-history?{urllib.parse.urlencode(query)}")
            points |= {
                (int(one["timestamp"]), int(one.get("step", 0)))
                for one in answer.get("metrics", [])
            }
            if not answer.get("next_page_token"):
                return points
            query["page_token"] = answer["next_page_token"]

    def _experiment_id(self, name: str) -> str:
        by_name = f"experiments/get-by-name?experiment_name={urllib.parse.quote(name)}"
        try:
            return str(self._call(by_name)["experiment"]["experiment_id"])
        except MlflowRefused as error:
            if error.code != _MISSING:
                raise
        try:
            return str(self._call("experiments/create", {"name": name})["experiment_id"])
        except MlflowRefused as error:  # another run created it first
            if error.code != _EXISTS:
                raise
        return str(self._call(by_name)["experiment"]["experiment_id"])

    def _call(self, path: str, body: Mapping[str, Any] | None = None) -> Any:
        request = urllib.request.Request(  # noqa: S310  # read_tracking_uri ensures http or https
            f"{self._url}/api/2.0/mlflow/{path}",
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers,
        )
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as answer:
                text = answer.read()
        except _RedirectedAway as error:
            raise self._refused(path, f"the server redirects to {error.server}", "") from None
        except http.client.HTTPException as error:  # an incomplete response
            raise ConnectionError(
                f"the MLflow server at {self._url} sent an incomplete response: {type(error).__name__}"
            ) from None
        except urllib.error.HTTPError as error:
            raise self._read_error(error, path) from None
        except urllib.error.URLError as error:
            raise ConnectionError(
                f"cannot reach the MLflow server at {self._url}: {error.reason}"
            ) from None
        try:
            return json.loads(text or b"{}")
        except ValueError:
            raise self._refused(path, "the response is not MLflow's", "") from None

    def _read_error(self, error: urllib.error.HTTPError, path: str) -> Exception:
        text = error.read().decode(errors="replace")[:500]
        error.close()
        if error.code >= 500 or error.code in _RETRIED_CODES:
            return ConnectionError(
                f"the MLflow server at {self._url} returned {error.code}: {text}"
            )
        try:
            answer = json.loads(text)
            return self._refused(path, str(answer["message"]), str(answer["error_code"]))
        except (ValueError, KeyError, TypeError):
            return self._refused(path, f"{error.code} {text}", "")

    def _refused(self, path: str, message: str, code: str) -> MlflowRefused:
        refused = MlflowRefused(
            f"the MLflow server at {self._url} refuses {path.partition('?')[0]}: {message}",
            hint="check MLFLOW_TRACKING_URI, and MLFLOW_TRACKING_TOKEN or _USERNAME and _PASSWORD",
        )
        refused.code = code
        return refused


def _authorization(parts: urllib.parse.SplitResult, env: Mapping[str, str]) -> dict[str, str]:
    user = env.get("MLFLOW_TRACKING_USERNAME") or urllib.parse.unquote(parts.username or "")
    password = env.get("MLFLOW_TRACKING_PASSWORD") or urllib.parse.unquote(parts.password or "")
    if user:
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
        return {"Authorization": f"Basic {encoded}"}
    token = env.get("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _tls_of(env: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=env.get("MLFLOW_TRACKING_SERVER_CERT_PATH") or None)
    if env.get("MLFLOW_TRACKING_INSECURE_TLS", "").lower() in ("1", "true"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]


def _json_number(value: float) -> float | str:
    """Return a number for JSON, with NaN and infinities as protobuf writes them."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _now_ms() -> int:
    return int(time.time() * 1000)

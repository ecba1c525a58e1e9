"""What the MLflow tracker needs of a place for runs, and that place through the `mlflow` library.

For databases (sqlite, postgresql ...) and what else the library alone can open. Servers are spoken to by
mlflow_rest, without the library. Called from the tracker's thread.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowMetric:
    key: str
    value: float
    timestamp_ms: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MlflowBatch:
    """At most 1000 metrics, 100 params and 100 tags: what MLflow takes at once."""

    metrics: Sequence[MlflowMetric] = ()
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)


class MlflowStore(Protocol):
    """Runs by id. A run that is not there any more is None, not an error."""

    def create_run(self, experiment: str, *, name: str, tags: Mapping[str, str]) -> str: ...

    def read_params(self, run_id: str) -> dict[str, str] | None: ...

    def log_batch(self, run_id: str, batch: MlflowBatch) -> None: ...

    def set_status(self, run_id: str, status: str) -> None: ...

    def read_history(self, run_id: str, key: str) -> set[tuple[int, int]]:
        """Return the time (in ms) and the step of each point of a metric."""


class LibraryStore:
    """By `mlflow.MlflowClient`."""

    def __init__(self, mlflow: Any, uri: str) -> None:
        self._mlflow = mlflow
        self._uri = uri
        self._opened: Any = None

    @property
    def _client(self) -> Any:
        if self._opened is None:  # the first use of a database makes its tables
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

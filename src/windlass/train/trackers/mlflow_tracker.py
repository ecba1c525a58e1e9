"""MLflow tracker: one run over restarts, on a server (without a library) or in a database (with the library).

Metrics are collected and sent in batches. Metrics that an outage held back are sent from metrics.jsonl, at
the next start or at the run's end. A restart continues the same run id. MLflow cannot change the params of a
run, so params that differ after a restart become tags.

Accepts MLFLOW_TRACKING_URI in its common forms. A bare path used to be a store of files. MLflow 3 refuses it,
so it becomes a database under that path.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import math
import os
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from windlass import names
from windlass.errors import SpecError
from windlass.train.trackers.jsonl_tracker import read_records
from windlass.train.trackers.mlflow_store import (
    LibraryStore,
    MlflowBatch,
    MlflowMetric,
    MlflowStore,
    RestStore,
)
from windlass.train.trackers.tracker import flatten, import_library
from windlass.train.trackers.tracker_table import TrackedRun

DATABASE = "mlflow.db"
FILES = "mlruns"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")
logger = logging.getLogger(__name__)

_EXPERIMENT = "windlass"
_METRICS_AT_ONCE = 1000
_PARAMS_AT_ONCE = 100
_PARAM_CHARACTERS = 500  # accepted by MLflow since version 1
_NOT_IN_KEYS = re.compile(r"[^\w\-. /:]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingUri:
    """Address of a store, and a note to log about it."""

    uri: str
    given: str = ""
    note: str = ""
    folder: Path | None = None  # folder of plain files, if the store is one

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def is_database(self) -> bool:
        """True if MLflow needs SQLAlchemy for it, which mlflow-skinny does not include."""
        return self.uri.partition(":")[0].partition("+")[0] in _DATABASES

    @property
    def database(self) -> Path | None:
        """SQLite database file on this machine, or None for other stores."""
        prefix = "sqlite:///"
        return Path(self.uri[len(prefix) :]) if self.uri.startswith(prefix) else None


def read_tracking_uri(value: str, *, out: Path, has_databases: bool = True) -> TrackingUri:
    """Return the tracking URI for a value of MLFLOW_TRACKING_URI.

    value: a path becomes a database in that folder. An empty value becomes a database in `out`.
    has_databases: False if the installed MLflow (mlflow-skinny) has no database support. Paths are then plain
        files.
    """
    if not value:
        if not has_databases:
            return _files_under(
                out / FILES,
                value,
                "MLFLOW_TRACKING_URI is not set, but the installed MLflow supports ",
            )
        uri = _sqlite_under(out)
        return TrackingUri(
            uri=uri,
            given=value,
            note=f"MLFLOW_TRACKING_URI is not set, so runs go to {uri}; to see them, run {_ui(uri)}",
        )
    parts = urlsplit(value)
    is_path = not parts.scheme and not value.startswith("databricks")
    if is_path or parts.scheme == "file":
        folder = Path(unquote(parts.path) if parts.scheme else value)
        if not has_databases:
            return _files_under(
                folder,
                value,
                f"MLFLOW_TRACKING_URI={value} is a path, but the installed MLflow supports ",
            )
        uri = _sqlite_under(folder)
        return TrackingUri(
            uri=uri,
            given=value,
            note=f"MLFLOW_TRACKING_URI={value} is a path, but MLflow 3 does not store runs in plain files, "
            f"so they go to {uri}; to see them, run {_ui(uri)}",
        )
    return TrackingUri(uri=value, given=value)


def _files_under(folder: Path, given: str, why: str) -> TrackingUri:
    folder = folder.expanduser().absolute()
    return TrackingUri(
        uri=folder.as_uri(),
        given=given,
        folder=folder,
        note=f"{why}no databases (mlflow-skinny), so runs go to plain files in {folder}; to see them, "
        f"set MLFLOW_ALLOW_FILE_STORE=true and run `mlflow ui --backend-store-uri {folder}`",
    )


def _sqlite_under(folder: Path) -> str:
    return f"sqlite:///{folder.expanduser().absolute() / DATABASE}"


def _ui(uri: str) -> str:
    return f"`mlflow ui --backend-store-uri {uri}`"


def make_mlflow(run: TrackedRun) -> MlflowTracker:
    address = read_tracking_uri(os.environ.get("MLFLOW_TRACKING_URI", ""), out=run.folder.parent)
    if address.is_server:
        return MlflowTracker(run, RestStore(address.uri, os.environ))
    library = import_library(
        "mlflow",
        tracker="mlflow",
        package="mlflow",
        otherwise=", or set MLFLOW_TRACKING_URI to a server (http://...), which needs no library",
    )
    if address.is_database and importlib.util.find_spec("sqlalchemy") is None:
        address = read_tracking_uri(address.given, out=run.folder.parent, has_databases=False)
        if address.folder is None:
            raise SpecError(
                f"MLFLOW_TRACKING_URI={address.given} is a database, but the installed MLflow "
                "(mlflow-skinny) does not support databases",
                hint="run `pip install mlflow`, or pass the path of a folder or a server (http://...)",
            )
        os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"  # otherwise it refuses to write files
    if address.note:
        logger.warning("%s", address.note)
    if address.database is not None:
        # If this fails, MLflow fails too, and a tracker must not end a run.
        with contextlib.suppress(OSError):
            address.database.parent.mkdir(parents=True, exist_ok=True)
    return MlflowTracker(run, LibraryStore(library, address.uri))


class MlflowTracker:
    """Tracker that keeps metrics in `_waiting` until the store has accepted them."""

    name = "mlflow"
    every_s = 1.0

    def __init__(self, run: TrackedRun, store: MlflowStore) -> None:
        self.run_id = run.run_id or os.environ.get("MLFLOW_RUN_ID") or None
        self._run = run
        self._store = store
        self._waiting: list[MlflowMetric] = []
        self._made_s = time.time()

    def start(self, params: Mapping[str, Any]) -> None:
        asked = {_key(k): str(v)[:_PARAM_CHARACTERS] for k, v in flatten(params).items()}
        known = self._store.read_params(self.run_id) if self.run_id else None
        if known is None or self.run_id is None:
            self.run_id, known = self._create(), {}
        else:
            self._store.set_status(self.run_id, "RUNNING")
        self._log_params({key: value for key, value in asked.items() if key not in known})
        changed = {
            key: asked[key] for key in asked.keys() & known.keys() if asked[key] != known[key]
        }
        tags = {
            f"attempt-{self._run.attempt}.{key}": value for key, value in sorted(changed.items())
        }
        tags |= {
            "windlass.attempt": str(self._run.attempt),
            "windlass.world_size": str(self._run.world_size),
        }
        self._store.log_batch(
            self.run_id, MlflowBatch(tags=dict(islice(tags.items(), _PARAMS_AT_ONCE)))
        )
        # The run belongs to another program if only MLFLOW_RUN_ID names it.
        if self._run.run_id or not os.environ.get("MLFLOW_RUN_ID"):
            self.backfill(until_s=self._made_s)

    def backfill(self, *, until_s: float = math.inf) -> None:
        """Send the records of metrics.jsonl that MLflow lacks, for example after an outage."""
        if self.run_id is None:
            return
        known: dict[str, set[tuple[int, int]]] = {}
        num_sent = 0
        for record in read_records(self._run.folder / names.METRICS_FILE):
            if record.time_s >= until_s or not record.metrics:
                continue
            key = _key(next(iter(record.metrics)))
            if key not in known:
                known[key] = self._store.read_history(self.run_id, key)
            at_ms = int(record.time_s * 1000)  # the file rounds times to microseconds
            if any((at_ms + off, record.step) in known[key] for off in (-1, 0, 1)):
                continue
            self.log(record.metrics, step=record.step, time_s=record.time_s)
            num_sent += 1
            if len(self._waiting) >= _METRICS_AT_ONCE:
                self.flush()
        self.flush()
        if num_sent:
            logger.info("sent %d records from metrics.jsonl that MLflow did not have", num_sent)

    def _create(self) -> str:
        if self.run_id:
            logger.warning("MLflow no longer has the run %s, so a new one starts", self.run_id)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or _EXPERIMENT
        job_id = os.environ.get(names.JOB_ID, "")
        tags = {
            "mlflow.source.name": "windlass.train",
            **({"windlass.job": job_id} if job_id else {}),
        }
        return self._store.create_run(experiment, name=self._run.name, tags=tags)

    def _log_params(self, params: Mapping[str, str]) -> None:
        rest = iter(params.items())
        while self.run_id and (some := dict(islice(rest, _PARAMS_AT_ONCE))):
            self._store.log_batch(self.run_id, MlflowBatch(params=some))

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None:
        at_ms = int(time_s * 1000)
        self._waiting += [
            MlflowMetric(key=_key(name), value=float(value), timestamp_ms=at_ms, step=step)
            for name, value in metrics.items()
        ]

    def flush(self) -> None:
        while self._waiting and self.run_id:
            self._store.log_batch(
                self.run_id, MlflowBatch(metrics=self._waiting[:_METRICS_AT_ONCE])
            )
            del self._waiting[:_METRICS_AT_ONCE]

    def close(self, *, ok: bool = True) -> None:
        if self.run_id:
            self._store.set_status(self.run_id, "FINISHED" if ok else "FAILED")


def _key(name: str) -> str:
    """Return a name without the characters that MLflow rejects, and of at most 250 characters."""
    return _NOT_IN_KEYS.sub("_", name)[:250]

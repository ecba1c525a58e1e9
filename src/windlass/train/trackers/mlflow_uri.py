"""Where MLflow's runs go: MLFLOW_TRACKING_URI as people write it -> an address that MLflow of today takes.

Pure. Called by mlflow_tracker. A bare path was a store of files once; MLflow 3 refuses it, so it becomes a
database under that path.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

DATABASE = "mlflow.db"


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingUri:
    """An address, whether it is a server's, and what should be said about it."""

    uri: str
    note: str = ""

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def database(self) -> Path | None:
        """The file of a database on this machine."""
        prefix = "sqlite:///"
        return Path(self.uri[len(prefix) :]) if self.uri.startswith(prefix) else None


def read_tracking_uri(value: str, *, out: Path) -> TrackingUri:
    """value: as MLFLOW_TRACKING_URI has it; empty: a database in `out`, the folder of all runs."""
    if not value:
        uri = _sqlite_under(out)
        return TrackingUri(
            uri=uri,
            note=f"MLFLOW_TRACKING_URI is not set: runs go to {uri}; see them by {_ui(uri)}",
        )
    parts = urlsplit(value)
    is_path = not parts.scheme and not value.startswith("databricks")
    if is_path or parts.scheme == "file":
        folder = Path(unquote(parts.path) if parts.scheme else value)
        uri = _sqlite_under(folder)
        return TrackingUri(
            uri=uri,
            note=f"MLFLOW_TRACKING_URI={value} is a path, and MLflow 3 keeps no runs in plain files: "
            f"they go to {uri}; see them by {_ui(uri)}",
        )
    return TrackingUri(uri=value)


def _sqlite_under(folder: Path) -> str:
    return f"sqlite:///{folder.expanduser().absolute() / DATABASE}"


def _ui(uri: str) -> str:
    return f"`mlflow ui --backend-store-uri {uri}`"

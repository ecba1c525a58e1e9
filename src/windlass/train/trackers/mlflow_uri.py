"""Where MLflow's runs go: MLFLOW_TRACKING_URI as people write it -> an address that MLflow of today takes.

Pure. Called by mlflow_tracker. A bare path was a store of files once; MLflow 3 refuses it, so it becomes a
database under that path.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

DATABASE = "mlflow.db"
FILES = "mlruns"
_DATABASES = ("sqlite", "postgresql", "mysql", "mssql")


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackingUri:
    """An address, whether it is a server's, and what should be said about it."""

    uri: str
    given: str = ""
    note: str = ""
    folder: Path | None = None  # a store of plain files

    @property
    def is_server(self) -> bool:
        return self.uri.startswith(("http://", "https://"))

    @property
    def is_database(self) -> bool:
        """True if MLflow needs SQLAlchemy for it, which mlflow-skinny does not bring."""
        return self.uri.partition(":")[0].partition("+")[0] in _DATABASES

    @property
    def database(self) -> Path | None:
        """The file of a database on this machine."""
        prefix = "sqlite:///"
        return Path(self.uri[len(prefix) :]) if self.uri.startswith(prefix) else None


def read_tracking_uri(value: str, *, out: Path, has_databases: bool = True) -> TrackingUri:
    """Return the address for a value of MLFLOW_TRACKING_URI.

    value: a path becomes a database in that folder; an empty one, a database in `out`.
    has_databases: False if the installed MLflow (mlflow-skinny) opens none: paths are plain files then.
    """
    if not value:
        if not has_databases:
            return _files_under(
                out / FILES,
                value,
                "MLFLOW_TRACKING_URI is not set, and the installed MLflow opens ",
            )
        uri = _sqlite_under(out)
        return TrackingUri(
            uri=uri,
            given=value,
            note=f"MLFLOW_TRACKING_URI is not set: runs go to {uri}; see them by {_ui(uri)}",
        )
    parts = urlsplit(value)
    is_path = not parts.scheme and not value.startswith("databricks")
    if is_path or parts.scheme == "file":
        folder = Path(unquote(parts.path) if parts.scheme else value)
        if not has_databases:
            return _files_under(
                folder,
                value,
                f"MLFLOW_TRACKING_URI={value} is a path, and the installed MLflow opens ",
            )
        uri = _sqlite_under(folder)
        return TrackingUri(
            uri=uri,
            given=value,
            note=f"MLFLOW_TRACKING_URI={value} is a path, and MLflow 3 keeps no runs in plain files: "
            f"they go to {uri}; see them by {_ui(uri)}",
        )
    return TrackingUri(uri=value, given=value)


def _files_under(folder: Path, given: str, why: str) -> TrackingUri:
    folder = folder.expanduser().absolute()
    return TrackingUri(
        uri=folder.as_uri(),
        given=given,
        folder=folder,
        note=f"{why}no databases (mlflow-skinny): runs go to plain files in {folder}; to see them, "
        f"set MLFLOW_ALLOW_FILE_STORE=true and run `mlflow ui --backend-store-uri {folder}`",
    )


def _sqlite_under(folder: Path) -> str:
    return f"sqlite:///{folder.expanduser().absolute() / DATABASE}"


def _ui(uri: str) -> str:
    return f"`mlflow ui --backend-store-uri {uri}`"

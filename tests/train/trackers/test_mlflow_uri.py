"""Forms of MLFLOW_TRACKING_URI."""

from __future__ import annotations

from pathlib import Path

import pytest

from windlass.train.trackers.mlflow_tracker import read_tracking_uri

OUT = Path("/out")


@pytest.mark.parametrize(
    "value",
    [
        "http://mlflow:5000",
        "https://mlflow.example/x",
        "sqlite:////out/a.db",
        "databricks",
        "postgresql://db/x",
    ],
)
def test_valid_uri_is_unchanged(value: str) -> None:
    address = read_tracking_uri(value, out=OUT)
    assert (address.uri, address.note) == (value, "")
    assert address.is_server == value.startswith("http")
    assert address.is_database == value.startswith(("sqlite", "postgresql"))


@pytest.mark.parametrize("value", ["/out/mlruns", "file:///out/mlruns", "file:/out/mlruns"])
def test_path_becomes_a_database_in_that_folder(value: str) -> None:
    address = read_tracking_uri(value, out=OUT)
    assert address.uri == "sqlite:////out/mlruns/mlflow.db"
    assert address.database == Path("/out/mlruns/mlflow.db")
    assert value in address.note
    assert "mlflow ui --backend-store-uri sqlite:////out/mlruns/mlflow.db" in address.note


@pytest.mark.parametrize("value", ["/out/mlruns", "file:///out/mlruns", ""])
def test_without_databases_a_path_is_a_folder_of_files(value: str) -> None:
    """mlflow-skinny has no database support."""
    address = read_tracking_uri(value, out=OUT, has_databases=False)
    assert (address.uri, address.folder) == ("file:///out/mlruns", Path("/out/mlruns"))
    assert not address.is_database
    assert "runs go to plain files in /out/mlruns" in address.note


def test_relative_path_is_resolved_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_tracking_uri("./mlruns", out=OUT).uri == f"sqlite:///{tmp_path}/mlruns/mlflow.db"


def test_default_is_a_database_next_to_the_runs() -> None:
    address = read_tracking_uri("", out=OUT)
    assert address.uri == "sqlite:////out/mlflow.db"
    assert "MLFLOW_TRACKING_URI is not set" in address.note

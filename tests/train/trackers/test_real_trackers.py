"""MLflow server and database, TensorBoard's reader, W&B offline. Each has one run over restarts."""

from __future__ import annotations

import importlib.util
import math
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import SpecError
from windlass.train.trackers import TrackerGroup, make_trackers
from windlass.train.trackers.mlflow_store import RestStore
from windlass.waiting import wait_until


def needs(library: str) -> pytest.MarkDecorator:
    is_missing = importlib.util.find_spec(library) is None
    return pytest.mark.skipif(is_missing, reason=f"{library} is not installed")


def trackers_of(names: str, folder: Path, *, attempt: int = 0, **more: Any) -> TrackerGroup:
    return make_trackers(
        names, folder=folder, run="a-run", rank=0, world_size=2 + attempt, attempt=attempt, **more
    )


def train_twice(names: str, folder: Path) -> tuple[TrackerGroup, TrackerGroup]:
    """Log steps 0 to 3, fail, then restart and log step 3 again with another setting."""
    groups = []
    for attempt, steps in enumerate((range(4), range(3, 6))):
        group = trackers_of(names, folder, attempt=attempt)
        group.start({"lr": 0.1 + attempt, "model": {"layers": 2}})
        for step in steps:
            group.log({"loss": 10.0 * attempt + step, "val/acc @1": float("nan")}, step=step)
        group.close(ok=attempt == 1, timeout_s=120)
        groups.append(group)
    return groups[0], groups[1]


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("mlflow")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--workers", "1"]
    log = (folder / "log").open("w")
    env = {**os.environ, "MLFLOW_DISABLE_TELEMETRY": "true", "DO_NOT_TRACK": "true"}
    server = subprocess.Popen(
        command, cwd=folder, stdout=log, stderr=log, env=env, start_new_session=True
    )
    try:
        url = f"http://127.0.0.1:{port}"
        assert wait_until(lambda: _answers(url), timeout_s=150, every_s=0.5), log.name
        yield url
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        log.close()


def _answers(url: str) -> bool:
    try:
        return RestStore(url, {}).read_params("none") is None
    except OSError:
        return False


def read_history(run_id: str, uri: str, key: str) -> list[tuple[int, float]]:
    import mlflow

    client = mlflow.MlflowClient(tracking_uri=uri)
    return sorted((m.step, m.value) for m in client.get_metric_history(run_id, key))


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("default")
@needs("mlflow")
def test_mlflow_server(
    mlflow_server: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", mlflow_server)
    first, second = train_twice("mlflow", tmp_path / "run")
    assert [r for r in caplog.records if r.name.startswith("windlass")] == []
    run_id = first.run_ids["mlflow"]
    assert second.run_ids == {"mlflow": run_id}
    run = mlflow.MlflowClient(tracking_uri=mlflow_server).get_run(run_id)
    assert (run.info.run_name, run.info.status) == ("a-run", "FINISHED")
    assert run.data.params == {"lr": "0.1", "model.layers": "2"}
    assert run.data.tags["attempt-1.lr"] == "1.1"
    assert run.data.tags["windlass.world_size"] == "3"
    losses = [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0), (3, 13.0), (4, 14.0), (5, 15.0)]
    assert read_history(run_id, mlflow_server, "loss") == losses
    assert math.isnan(run.data.metrics["val/acc _1"])


WITHOUT_DATABASES = """
import sys
sys.modules["sqlalchemy"] = sys.modules["alembic"] = None  # as with mlflow-skinny
from pathlib import Path
from windlass.errors import SpecError
from windlass.train.trackers import make_trackers
try:
    group = make_trackers("mlflow", folder=Path("run"), run="a", rank=0, world_size=1, attempt=0)
except SpecError as error:
    sys.exit(str(error))
group.start({"lr": 1})
group.log({"loss": 0.5}, step=1)
group.close(timeout_s=120)
"""


@pytest.mark.long
@pytest.mark.timeout(400)
@needs("mlflow")
def test_mlflow_skinny_writes_to_a_path_and_refuses_a_database(tmp_path: Path) -> None:
    def start(uri: str) -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "MLFLOW_TRACKING_URI": uri}
        command = [sys.executable, "-c", WITHOUT_DATABASES]
        return subprocess.run(
            command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False
        )

    written = start("mlruns")
    assert "runs go to plain files in" in written.stderr
    (losses,) = tmp_path.glob("mlruns/*/*/metrics/loss")
    assert losses.read_text().split()[1:] == ["0.5", "1"]
    refused = start("sqlite:///a.db")
    assert refused.returncode == 1
    assert "MLFLOW_TRACKING_URI=sqlite:///a.db is a database, but the installed" in refused.stderr


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.filterwarnings("default")
@needs("mlflow")
def test_mlflow_path_is_a_database_and_continues_a_checkpoints_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "mlruns"))
    first, _ = train_twice("mlflow", tmp_path / "run")
    uri = f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    assert f"they go to {uri}" in caplog.text
    run_id = first.run_ids["mlflow"]
    elsewhere = trackers_of("mlflow", tmp_path / "copied", run_ids=first.run_ids)
    elsewhere.log({"loss": 99.0}, step=9)
    elsewhere.close(timeout_s=120)
    assert read_history(run_id, uri, "loss")[-2:] == [(5, 15.0), (9, 99.0)]


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@needs("tensorboard")
def test_tensorboard_shows_one_run_with_repeated_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train_twice("tensorboard", tmp_path / "run")
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    losses = [(event.step, event.value) for event in events.Scalars("loss")]
    assert losses == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 13.0), (4, 14.0), (5, 15.0)]


@pytest.mark.long
@pytest.mark.filterwarnings("default")
@needs("wandb")
def test_wandb_offline_keeps_its_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    first, second = train_twice("wandb", tmp_path / "run")
    assert first.run_ids["wandb"] == second.run_ids["wandb"]
    written = list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{first.run_ids['wandb']}"))
    assert len(written) >= 1


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_missing_library_has_an_install_hint(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"needs wandb.*\n.*pip install wandb`; metrics\.jsonl is"):
        trackers_of("wandb", tmp_path)

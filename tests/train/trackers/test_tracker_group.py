"""Trackers never block a step, never end a run, and continue one run over restarts."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from windlass.errors import SpecError
from windlass.train.trackers import TrackerGroup, make_trackers
from windlass.train.trackers.tracker_group import RunIds, StepRecord, TrackerQueue


class ScriptedTracker:
    """Tracker that follows a script and records its calls."""

    name = "scripted"
    every_s = 0.0

    def __init__(self, *errors: Exception, run_id: str | None = None) -> None:
        self.run_id = run_id
        self.errors = list(errors)
        self.logged: list[tuple[int, dict[str, float]]] = []
        self.may_flush = threading.Event()
        self.may_flush.set()
        self.is_flushing = threading.Event()
        self.ended: list[bool] = []

    def start(self, params: Mapping[str, Any]) -> None:
        self.params = dict(params)

    def log(self, metrics: Mapping[str, float], *, step: int, time_s: float) -> None:
        self.logged.append((step, dict(metrics)))

    def flush(self) -> None:
        self.is_flushing.set()
        self.may_flush.wait()
        if self.errors:
            raise self.errors.pop(0)

    def close(self, *, ok: bool = True) -> None:
        self.ended.append(ok)


def group_of(tracker: ScriptedTracker, folder: Path) -> TrackerGroup:
    return TrackerGroup([tracker], run_ids=RunIds(folder, known={}))


def trackers_of(folder: Path, **keywords: Any) -> TrackerGroup:
    return make_trackers(
        keywords.pop("names", ()),
        folder=folder,
        run="a-run",
        **{"rank": 0, "world_size": 2, "attempt": 0, **keywords},
    )


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_jsonl_has_every_step_of_every_attempt(tmp_path: Path) -> None:
    for attempt, world_size in ((0, 2), (1, 4)):
        group = trackers_of(tmp_path / "run", attempt=attempt, world_size=world_size)
        group.start({"optimizer": {"lr": 0.1}, "layers": (1, 2)})
        for step in range(3):
            group.log({"loss": torch.tensor(0.5) * step}, step=step)
        group.close()
    lines = lines_of(tmp_path / "run")
    assert [line["event"] for line in lines] == ["start", *["metrics"] * 3, "end"] * 2
    assert lines[0]["params"] == {"optimizer.lr": 0.1, "layers": [1, 2]}
    assert [line["metrics"] for line in lines[1:4]] == [{"loss": 0.0}, {"loss": 0.5}, {"loss": 1.0}]
    assert {(line["attempt"], line["world_size"]) for line in lines} == {(0, 2), (1, 4)}


def test_jsonl_is_strict_and_continues_after_a_partial_line(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"event":"metr')
    group = trackers_of(tmp_path)
    group.log({"loss": float("nan"), "norm": float("-inf")}, step=1)
    group.close(ok=False)
    first, *others = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert first == '{"event":"metr'
    assert json.loads(others[1])["metrics"] == {"loss": "nan", "norm": "-inf"}
    assert json.loads(others[2])["ok"] is False


def test_only_rank_0_tracks(tmp_path: Path) -> None:
    group = trackers_of(tmp_path / "run", rank=1)
    group.start({})
    group.log({"loss": 1.0}, step=0)
    group.close()
    assert group.names == ()
    assert not (tmp_path / "run").exists()


def test_full_queue_drops_the_oldest_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = ScriptedTracker()
    tracker.may_flush.clear()
    queue = TrackerQueue(tracker, keep_run_id=lambda *_: None, max_queued=3)
    queue.start({})
    queue.put(StepRecord({}, step=0, time_s=0.0))
    assert tracker.is_flushing.wait(10)
    for step in range(1, 10):
        queue.put(StepRecord({}, step=step, time_s=0.0))
    tracker.may_flush.set()
    queue.ask_to_close(ok=True, timeout_s=10)
    queue.join(10)
    assert [step for step, _ in tracker.logged][-3:] == [7, 8, 9]
    assert queue.num_dropped >= 6
    assert sum("is too slow" in message for message in caplog.messages) == 1


def test_log_returns_immediately_and_close_abandons_a_hanging_tracker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = ScriptedTracker()
    tracker.may_flush.clear()
    group = group_of(tracker, tmp_path)
    start_s = time.perf_counter()
    for step in range(1000):
        group.log({"loss": 1.0}, step=step)
    each_s = (time.perf_counter() - start_s) / 1000
    group.close(timeout_s=0.1)
    tracker.may_flush.set()
    assert each_s < 0.001
    assert "did not accept its last records within 0 s" in caplog.text


def test_unreachable_tracker_is_retried_without_loss(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("windlass.train.trackers.tracker_group._SHORTEST_PAUSE_S", 0.01)
    tracker = ScriptedTracker(ConnectionRefusedError("no server"), TimeoutError("slow"))
    group = group_of(tracker, tmp_path)
    for step in range(5):
        group.log({"loss": 1.0}, step=step)
    group.close()
    assert [step for step, _ in tracker.logged] == [0, 1, 2, 3, 4]
    assert tracker.ended == [True]
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "scripted failed: ConnectionRefusedError: no server" in caplog.text


def test_tracker_error_stops_the_tracker_but_not_the_run(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = ScriptedTracker(ValueError("this value is not allowed"))
    group = TrackerGroup([tracker], run_ids=RunIds(tmp_path, known={}))
    group.log({"loss": 1.0}, step=0)
    group.close()
    group.log({"loss": 1.0}, step=1)
    assert tracker.ended == []
    assert caplog.text.count("ValueError: this value is not allowed; it is turned off") == 1


def test_run_id_is_kept_in_the_folder_and_a_checkpoint_overrides_it(tmp_path: Path) -> None:
    group = group_of(ScriptedTracker(run_id="r-17"), tmp_path / "run")
    group.start()
    group.close()
    assert group.run_ids == {"scripted": "r-17"}
    assert trackers_of(tmp_path / "run").run_ids == {"scripted": "r-17"}
    resumed = trackers_of(tmp_path / "run", run_ids={"scripted": "r-3"})
    assert resumed.run_ids == {"scripted": "r-3"}


def test_unknown_tracker_is_named_with_the_nearest_match(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"unknown tracker 'mlfow'\n  hint: did you mean mlflow\?"):
        trackers_of(tmp_path, names="jsonl, mlfow")


def test_settle_waits_for_files_but_not_for_stuck_trackers(tmp_path):
    quick = trackers_of(tmp_path)
    quick.log({"loss": 1.0}, step=1)
    quick.settle()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert json.loads(lines[-1])["step"] == 1
    quick.close()
    stuck = ScriptedTracker()
    stuck.is_file = True
    group = group_of(stuck, tmp_path)
    stuck.may_flush.clear()
    group.log({"loss": 1.0}, step=1)
    group.settle()
    assert not stuck.may_flush.is_set()
    stuck.may_flush.set()
    group.close()
    assert [step for step, _ in stuck.logged] == [1]


@pytest.mark.long
def test_database_that_cannot_be_created_does_not_end_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", str(tmp_path / "file/runs"))
    group = make_trackers(
        "mlflow", folder=tmp_path / "out/run", run="run", rank=0, world_size=1, attempt=0
    )
    assert group.run_ids == {}

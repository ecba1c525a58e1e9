"""A new client that connects after a job has ended gets its status, logs and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import rank_work as work

import windlass as wl
from windlass.waiting import wait_until

pytestmark = [
    pytest.mark.cluster_only("a local job's folder is in its client's home"),
    pytest.mark.needs_can("ends"),
]


@pytest.fixture
def attach_later(on: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def attach(job: wl.Job) -> wl.Job:
        assert wait_until(lambda: _has_ended(on, job), timeout_s=60, every_s=0.2), job
        monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "another home"))
        return wl.attach(str(job.ref))

    return attach


def _has_ended(on: Any, job: wl.Job) -> bool:
    return on.dialect.read_end(on.space.api.get(on.dialect.kind, job.id)) is not None


def _lines(job: wl.Job) -> list[tuple[Any, ...]]:
    found = [(line.rank, line.attempt, line.stream, line.text) for line in job.logs()]
    return sorted(found, key=lambda line: line[:2])


@pytest.mark.engine_matters
def test_results_status_and_every_line(on, attach_later):
    job = on.submit(work.print_lines, (3,), nodes=2, procs=2)
    assert job.results() == [None] * 4
    before, lines = job.status(), _lines(job)
    later = attach_later(job)
    assert later.results() == [None] * 4
    assert _lines(later) == lines
    after = later.status()
    assert (after.phase, after.ranks, after.ended_at_s) == (
        before.phase, before.ranks, before.ended_at_s,
    )  # fmt: skip


@pytest.mark.engine_matters
def test_an_exception_and_its_verdict(on, attach_later):
    job = on.fail(work.fail, ("plain", 1), procs=2, restarts=1)
    verdict, history = job.verdict(), job.status().history
    later = attach_later(job)
    with pytest.raises(work.Plain) as caught:
        later.results()
    assert (caught.value.code, caught.value.detail) == (7, "seven")
    assert later.verdict() == verdict
    assert later.status().history == history
    assert len(history) == 1


def test_a_result_too_large_to_outlive_its_pod_is_reported(on, attach_later):
    job = on.submit(lambda: bytes(3_000_000) if work.rank() else 5, procs=2)
    assert job.results() == [5, bytes(3_000_000)]
    later = attach_later(job)
    assert later.status().phase.value == "succeeded"
    with pytest.raises(wl.EngineError, match="too large to be kept after its pod"):
        later.results()

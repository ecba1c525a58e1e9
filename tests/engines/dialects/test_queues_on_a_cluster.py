"""Kueue with the kinds of operators: it admits jobs or gives a reason. Skipped unless both are installed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster_objects import open_queue
from cluster_space import Space
from operator_jobs import use_dialect
from waits import wait_for

import windlass as wl
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.raycluster import RAYCLUSTER
from windlass.engines.dialects.trainjob import TRAINJOB
from windlass.kube.diagnosis.blocker import NOT_ADMITTED, QUEUE_TOO_SMALL
from windlass.observe.explain import Why, explain

pytestmark = pytest.mark.cluster
SMALL = {"cpus": "500m", "memory": "512Mi"}


@pytest.fixture(params=[TRAINJOB, PYTORCHJOB, RAYCLUSTER], ids=lambda dialect: dialect.name)
def dialect(
    request: pytest.FixtureRequest,
    space: Space,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> Iterator[Dialect]:
    with use_dialect(request.param, space, monkeypatch, tmp_path):
        yield request.param


@pytest.fixture
def queue(space: Space) -> Iterator[str]:
    with open_queue(space.api) as name:
        yield name


def read_why(job: wl.Job, reason: str) -> Why:
    wait_for(lambda: any(c.reason == reason for c in job.status().conditions), reason, 60)
    return explain(job.status(), now_s=time.time())


def test_waiting_job_shows_the_reason_and_is_admitted_later(dialect, space, queue):
    first = wl.submit(["sleep", "600"], queue=queue, nodes=2, **SMALL)
    wait_for(lambda: first.status().phase.value == "running", "the first one runs")
    second = wl.submit(["true"], queue=queue, **SMALL)
    why = read_why(second, NOT_ADMITTED)
    wait_for(lambda: "insufficient unused quota" in read_why(second, NOT_ADMITTED).sentence, "why")
    assert f'it waits in the queue "{queue}"' in why.sentence
    assert f"kubectl describe localqueue {queue}" in why.next
    assert dialect.read_hold(space.api.get(dialect.kind, second.id), events=(), queues=None), (
        "it is suspended"
    )
    first.cancel(now=True)
    # an object that never ends by itself frees its quota once a client has read its end
    first.wait(60)
    assert second.wait(120).phase.value == "succeeded"


def test_request_above_the_quota_never_starts(dialect, queue):
    job = wl.submit(["true"], queue=queue, cpus="8", memory="512Mi")
    why = read_why(job, QUEUE_TOO_SMALL)
    assert f'it will never start in the queue "{queue}"' in why.sentence
    assert "it requests 8 cpu in total, but the queue's total quota is 1" in why.sentence
    assert "--cpus" in why.next

"""The status of a job while the API server has not yet answered."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kube.api_server import Answer, connect_to, serve
from kube.plans import make_pod_plan

from windlass import names
from windlass.engines.cluster.cluster_job import ClusterJob
from windlass.engines.cluster.job_secret import make_certificates
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.wire.job_folder import JobFolder

PLAN = make_pod_plan(nodes=2)


@pytest.fixture
def view(tmp_path: Path) -> Iterator[ClusterJob]:
    """Yield a view of a job on a cluster that accepts every request and answers none."""
    held = threading.Event()
    folder = JobFolder(tmp_path / "job")
    folder.path.mkdir()
    keys = make_certificates(PLAN.job_id, now_s=1e9, valid_s=1e9)
    with serve(Answer(lines=(), hold=held)) as server:
        found = ClusterJob(connect_to(server.url, tmp_path), KUBERNETES, PLAN, folder, keys)
        yield found
        found.release()
        held.set()


@pytest.mark.long
def test_other_clients_are_warned_that_nothing_is_known_yet(view: ClusterJob) -> None:
    view.settle()
    status = view.status()
    assert not status.phase.is_final, "missing answers are not a verdict"
    assert [c.type for c in status.conditions if c.reason == names.REASON_UNSEEN] == ["warning"]
    assert not view.folder.status.exists()


def test_submitting_client_is_not_warned(view: ClusterJob) -> None:
    assert [c.reason for c in view.status().conditions] == []

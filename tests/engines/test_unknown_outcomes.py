"""Jobs over a small API server whose outcome was not reported, and servers that are unavailable."""

from __future__ import annotations

import io
import time
from contextlib import contextmanager

import pytest
from kube.api_server import connect_to
from kube.fake_cluster import fake_cluster, make_fake_job, make_fake_pod
from kube.plans import make_pod_plan
from waits import wait_for

from windlass import names
from windlass.client.jobs.job import make_failure
from windlass.client.jobs.live_view import LiveView
from windlass.engines.cluster import cluster_job
from windlass.engines.cluster.cluster_job import ClusterJob
from windlass.engines.cluster.job_secret import make_certificates
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.errors import EngineError
from windlass.observe.explain import exit_code_of, explain, render_verdict
from windlass.wire.job_folder import JobFolder
from windlass.wire.last_word import render_last_word
from windlass.wire.status import FailureKind, Phase, make_first_status, render_status

PLAN = make_pod_plan(detach=True)
LEFT = {"exitCode": 0, "reason": "Completed", "finishedAt": "2026-01-31T12:00:00Z"}
COMPLETE = {"type": "Complete"}


@contextmanager
def looking(cluster, tmp_path, plan=PLAN):
    """Yield a view of the job that has read the current objects."""
    folder = JobFolder(tmp_path / "job")
    folder.path.mkdir(exist_ok=True)
    keys = make_certificates(plan.job_id, now_s=time.time(), valid_s=3600.0)
    (tmp_path / "config").mkdir(exist_ok=True)
    api = connect_to(cluster.url, tmp_path / "config", retry_for_s=0.0)
    view = ClusterJob(api, KUBERNETES, plan, folder, keys)
    try:
        view.settle()
        yield view
    finally:
        view.close()


def look(tmp_path, **objects):
    with fake_cluster() as cluster:
        cluster.objects = objects
        with looking(cluster, tmp_path) as view:
            return view.status()


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


# -- ends ----------------------------------------------------------------------------------------


def test_job_without_pods_has_an_unknown_outcome(tmp_path):
    status = look(tmp_path, jobs=[make_fake_job(PLAN.job_id, COMPLETE)])
    assert (status.phase, status.verdict.kind) == (Phase.ENDED, FailureKind.UNKNOWN)
    assert status.verdict.message == "it finished, but its outcome was lost with its pods"
    assert status.conditions[-1].reason == names.REASON_OUTCOME_UNKNOWN
    for kept_it in ("stay attached", "windlass status", "--volume"):
        assert kept_it in status.verdict.next
    shown = render_verdict(status)
    assert shown.startswith(f"? job {PLAN.job_id} has ended: outcome not known\n")
    assert "failed" not in shown
    why = explain(status, now_s=time.time()).sentence
    assert "has ended" in why
    assert "lost with its pods" in why
    assert exit_code_of(status) == 3
    error = make_failure(status.verdict)
    assert type(error) is EngineError
    assert "stay attached" in error.hint
    assert (
        tmp_path / "job" / names.STATUS_FILE
    ).exists()  # kept, because it is the last known status


def test_job_that_just_ended_is_not_pending(tmp_path):
    status = look(tmp_path, jobs=[make_fake_job(PLAN.job_id, COMPLETE, at=now())])
    assert status.phase in (Phase.STOPPING, Phase.ENDED)


def test_unreadable_log_is_read_later(tmp_path):
    pods = [make_fake_pod("pod-0", terminated=LEFT)]
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id, COMPLETE)], "pods": pods}
        with looking(cluster, tmp_path) as view:
            status = view.status()
            assert status.phase is Phase.ENDED
            assert "the log of pod pod-0, which cannot be read now" in status.verdict.message
        ended = render_status(make_first_status(PLAN)).replace(b'"pending"', b'"succeeded"', 1)
        cluster.logs["pod-0"] = render_last_word({names.STATUS_FILE: ended})
        with looking(cluster, tmp_path) as view:
            assert view.status().phase is Phase.SUCCEEDED


def test_failed_job_without_pods_is_not_a_failed_start(tmp_path):
    failed = {"type": "Failed", "reason": "BackoffLimitExceeded", "message": "too often"}
    status = look(tmp_path, jobs=[make_fake_job(PLAN.job_id, failed)])
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.LOST_NODE)
    assert status.verdict.message == (
        "its pods failed and are gone (BackoffLimitExceeded: too often)"
    )
    assert status.conditions[-1].reason == names.REASON_NODE_LOST


def test_reason_of_a_cancelled_job(tmp_path):
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id)]}
        with looking(cluster, tmp_path) as view:
            assert view.status().phase is Phase.PENDING
            view.cancel(now=False, why="enough")
            status = view.status()
    assert (status.phase, status.verdict.message) == (Phase.CANCELLED, "enough")
    assert status.conditions[-1].reason == names.REASON_CANCELLED


def test_reason_of_a_deleted_job(tmp_path):
    status = look(tmp_path)
    assert (status.phase, status.conditions[-1].reason) == (
        Phase.CANCELLED,
        names.REASON_CANCELLED,
    )


def test_reason_of_a_job_that_never_started(tmp_path):
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id)]}
        with looking(cluster, tmp_path) as view:
            view._start_timeout_s = 0.0
            status = view.status()
    assert (status.phase, status.verdict.kind) == (Phase.FAILED, FailureKind.START_FAILED)
    assert status.conditions[-1].reason == names.REASON_START_FAILED


# -- outages -------------------------------------------------------------------------------------


@pytest.mark.parametrize("away_s", [0.05, 3600.0])
def test_outage_and_its_end_are_each_reported_once(tmp_path, monkeypatch, away_s):
    """The client has no terminal. A very short outage is not reported."""
    monkeypatch.setattr(cluster_job, "_AWAY_S", away_s)
    messages = io.StringIO()
    shown = LiveView(out=io.StringIO(), messages=messages)
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id)]}
        with looking(cluster, tmp_path) as view:

            def count(text):
                shown.show(view.status(), ())
                return messages.getvalue().count(text)

            assert count("cannot reach") == 0
            cluster.go_away()
            wait_for(lambda: view._watch.snapshot().outage is not None, "it is seen to be away")
            is_reported = away_s < 1.0
            if is_reported:
                wait_for(lambda: count("cannot reach") > 0, "it is reported")
            num_asked = len(cluster.seen)
            for _ in range(20):
                assert count("cannot reach") == is_reported
            assert len(cluster.seen) - num_asked < 10, "no request is sent during the outage"
            cluster.is_away = False
            wait_for(lambda: view._watch.snapshot().outage is None, "it is seen to be back")
            for _ in range(20):
                assert count("the API server answers again after") == is_reported
    assert messages.getvalue().count("\n") == 2 * is_reported, messages.getvalue()


def test_full_disk_at_the_end_raises_and_the_outcome_is_read_later(tmp_path, room):
    result = "attempt-0/rank-0.result"
    pods = [make_fake_pod("pod-0", terminated=LEFT)]
    with fake_cluster() as cluster:
        cluster.objects = {"jobs": [make_fake_job(PLAN.job_id, COMPLETE)], "pods": pods}
        ended = render_status(make_first_status(PLAN)).replace(b'"pending"', b'"succeeded"', 1)
        cluster.logs["pod-0"] = render_last_word({names.STATUS_FILE: ended, result: b"v" * 500_000})
        with looking(cluster, tmp_path) as view:
            room(200_000)
            with pytest.raises(EngineError, match=f"cannot write to {tmp_path}/job") as caught:
                view.status()
            assert names.HOME in caught.value.hint
            room(None)
            assert view.status().phase is Phase.SUCCEEDED
        assert (tmp_path / "job" / result).read_bytes() == b"v" * 500_000

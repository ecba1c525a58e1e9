"""ClusterEngine without a cluster: how jobs end and are removed, and how computes grow."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster_engines import (
    KEEPING_COMPUTES,
    SOURCE,
    closing_engine,
    main_of,
    make_pod,
    submit,
    wait_for_status,
)
from waits import wait_for
from windlass_statefulset import STATEFUL_SET

from windlass import names
from windlass.errors import JobNotFound, SpecError
from windlass.spec.work import Calls
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.last_word import render_last_word
from windlass.wire.status import Phase, make_first_status, render_status


def test_job_without_a_lead_is_cancelled_by_deleting_it(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    wait_for_status(engine, ref, lambda status: not status.phase.is_final, "the job exists")
    engine.cancel(ref, why="enough")
    status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    assert (status.phase, status.verdict.message) == (Phase.CANCELLED, "enough")
    assert cluster.names() == [SOURCE]
    engine.cancel(ref)  # a second cancel changes nothing


def test_only_an_ended_job_is_removed(engine, cluster, dialect, tmp_path) -> None:
    ref = submit(engine, dialect)
    with pytest.raises(SpecError, match="is still pending"):
        engine.remove(ref)
    engine.cancel(ref)
    wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    engine.remove(ref)
    assert (cluster.names(), engine.jobs()) == ([SOURCE], [])
    assert not (tmp_path / "home" / dialect.name / ref.job_id).exists()


def test_folder_of_a_deleted_job_can_be_removed(engine, cluster, dialect, tmp_path) -> None:
    ref = submit(engine, dialect)
    engine.let_go(ref)
    folder = tmp_path / "home" / dialect.name / ref.job_id
    assert folder.exists()
    for plural in (dialect.kind.plural, "secrets"):
        cluster.put(plural)
    with closing_engine(dialect, tmp_path) as next_client:
        next_client.remove(ref)
        assert not folder.exists()
        with pytest.raises(JobNotFound):
            next_client.remove(ref)


def test_client_that_saw_the_end_removes_objects_that_never_end(
    engine, cluster, dialect, tmp_path
) -> None:
    """An object that ends by itself stays for other clients until its ttl is over."""
    ref = submit(engine, dialect)
    wait_for(lambda: engine._views[ref.job_id]._watch.wait(0), "it was seen")
    folder = JobFolder(tmp_path / "home" / dialect.name / ref.job_id)
    last = replace(make_first_status(engine.plan(ref)), phase=Phase.SUCCEEDED, ended_at_s=1.0)
    write_atomically(folder.status, render_status(last))
    assert engine.status(ref).phase is Phase.SUCCEEDED
    is_there = bool(cluster.objects[dialect.kind.plural])
    assert is_there is not dialect.stays_up
    assert engine.status(ref).phase is Phase.SUCCEEDED


def test_listing_jobs_removes_an_ended_object_that_stayed(
    engine, cluster, dialect, tmp_path
) -> None:
    """The client was killed before it could remove the object. The local status stays available."""
    ref = submit(engine, dialect)
    folder = JobFolder(tmp_path / "home" / dialect.name / ref.job_id)
    last = replace(make_first_status(engine.plan(ref)), phase=Phase.SUCCEEDED, ended_at_s=1.0)
    write_atomically(folder.status, render_status(last))
    with closing_engine(dialect, tmp_path) as next_client:
        assert next_client.jobs() == [ref]
        assert bool(cluster.objects[dialect.kind.plural]) is not dialect.stays_up
        assert next_client.status(ref).phase is Phase.SUCCEEDED


def test_end_is_read_from_the_last_word_if_the_lead_is_silent(cluster, tmp_path) -> None:
    """A lead that stays up answers for the job's time to live. Its log keeps its last word."""
    with closing_engine(STATEFUL_SET, tmp_path) as engine:
        ref = submit(engine, STATEFUL_SET, ttl_s=60.0)
        last = replace(make_first_status(engine.plan(ref)), phase=Phase.SUCCEEDED, ended_at_s=1.0)
        pod = make_pod(cluster, STATEFUL_SET)
        running = {"running": {"startedAt": "2026-01-31T12:00:00Z"}}
        state = [{"name": names.CONTAINER, "state": running}]
        cluster.logs[pod["metadata"]["name"]] = render_last_word(
            {"status.json": render_status(last)}
        )
        cluster.put("pods", {**pod, "status": {"phase": "Running", "containerStatuses": state}})
        status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
        assert status.phase is Phase.SUCCEEDED
        assert cluster.objects["statefulsets"] == []


# -- computes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", KEEPING_COMPUTES, indirect=True)
def test_compute_grows_by_a_patch(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect, work=Calls())
    engine.grow(ref, [2], 3)
    assert dialect.num_pods(main_of(cluster, dialect)) == 3
    engine.set_wait_deadline(ref, 12.0)
    annotations = main_of(cluster, dialect)["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_KEEP_PLACE] == "12"
    engine.set_wait_deadline(ref, None)
    assert names.ANNOTATION_KEEP_PLACE not in main_of(cluster, dialect)["metadata"]["annotations"]


def test_resizing_an_unsupported_kind_is_refused(cluster, dialect, tmp_path) -> None:
    with closing_engine(replace(dialect, resize=None, regroup=None), tmp_path) as engine:
        ref = submit(engine, dialect, work=Calls())
        before = main_of(cluster, dialect)
        with pytest.raises(
            SpecError, match=f"a compute that is a {dialect.kind.name} cannot be resized"
        ):
            engine.grow(ref, [2], 3)
    assert main_of(cluster, dialect) == before


def test_dial_fails_while_node_0_is_not_running(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect, work=Calls())
    cluster.put("pods", make_pod(cluster, dialect))
    with pytest.raises(ConnectionRefusedError, match="node 0 of train-ab2cd is not running"):
        engine.dial(ref)
    lead = ",".join(f"{label}={value}" for label, value in dialect.lead_labels.items())
    asked = [seen.params.get("labelSelector", "") for seen in cluster.seen if seen.method == "GET"]
    assert f"{names.LABEL_JOB}={ref.job_id},{lead}" in asked

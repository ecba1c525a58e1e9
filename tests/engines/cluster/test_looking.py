"""ClusterEngine without a cluster: the status it derives from the objects of an API server."""

from __future__ import annotations

from typing import Any

import pytest
from cluster_engines import closing_engine, main_of, make_pod, submit, wait_for_status
from waits import wait_for

from windlass import names
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.protocol import JobRef
from windlass.errors import JobNotFound
from windlass.kube.objects.fields import name_of
from windlass.spec.work import Calls
from windlass.wire.status import Phase


def test_blocker_is_in_the_status(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    pod = make_pod(cluster, dialect)
    condition = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    cluster.put("pods", {**pod, "status": {"phase": "Pending", "conditions": [condition]}})
    status = wait_for_status(
        engine,
        ref,
        lambda status: any(c.reason == "Unschedulable" for c in status.conditions),
        "the status says that its pod has no place",
    )
    assert not status.phase.is_final


def test_foreign_pods_are_ignored(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    own, strangers = make_pod(cluster, dialect), make_pod(cluster, dialect, index=1)
    # each dialect checks one of the two
    other = {"uid": "other", "name": "other"}
    strangers["metadata"]["ownerReferences"][0] |= other
    cluster.put("pods", strangers, own)
    engine.status(ref)
    watch = engine._views[ref.job_id]._watch
    wait_for(lambda: len(watch._pods) == 2 and watch.job is not None, "all was seen")
    assert [name_of(pod) for pod in watch.pods] == [name_of(own)]


def test_deleted_job_is_cancelled(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    wait_for_status(engine, ref, lambda status: not status.phase.is_final, "the job exists")
    wait_for(lambda: engine._views[ref.job_id]._watch.job is not None, "it was seen")
    cluster.put(dialect.kind.plural)
    status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    assert status.phase is Phase.CANCELLED
    assert status.verdict.message == f"its {dialect.kind.name} was deleted from the cluster"


def test_failed_object_ends_its_job(cluster, tmp_path) -> None:
    """Covers dialects whose objects end."""
    with closing_engine(KUBERNETES, tmp_path) as engine:
        ref = submit(engine, KUBERNETES)
        job = main_of(cluster, KUBERNETES)
        condition = {"type": "Failed", "status": "True", "reason": "MaxFailedIndexesExceeded"}
        condition |= {"message": "has failed", "lastTransitionTime": "2026-01-31T12:00:00Z"}
        cluster.put("jobs", {**job, "status": {"conditions": [condition]}})
        status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    assert status.phase is Phase.FAILED
    assert "MaxFailedIndexesExceeded: has failed" in status.verdict.message


def test_jobs_are_listed_newest_first_and_computes_by_their_work(engine, cluster, dialect) -> None:
    old = submit(engine, dialect, job_id="old-ab2cd")
    new = submit(engine, dialect, job_id="new-ab2cd", work=Calls())
    assert [ref.job_id for ref in engine.jobs()] == [new.job_id, old.job_id]
    assert engine.computes() == [new]
    assert str(new) == f"{dialect.name}://space/new-ab2cd"


def test_unknown_job_is_not_found(engine, cluster, dialect) -> None:
    cluster.objects = {dialect.kind.plural: [], "rayjobs": [], "secrets": []}
    with pytest.raises(JobNotFound, match="job 'nope-ab2cd' not found") as caught:
        engine.status(JobRef(dialect.name, "nope-ab2cd", "space"))
    assert f"windlass ls -e {dialect.name}" in caught.value.hint


def test_another_client_attaches_with_the_secret(engine, cluster, dialect, tmp_path) -> None:
    ref = submit(engine, dialect)
    with closing_engine(dialect, tmp_path / "elsewhere") as other:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        assert other.plan(ref).job_id == ref.job_id
        assert not other.is_made_here(ref)
        assert not other.status(ref).phase.is_final
    assert engine.is_made_here(ref)


def warns_of_forgotten_loss(status: Any) -> bool:
    return any(c.reason == names.REASON_LOSS_FORGOTTEN for c in status.conditions)


@pytest.mark.parametrize("dialect", [PYTORCHJOB, MONARCHMESH], indirect=True)
def test_recreated_only_pod_is_reported_if_the_count_is_lost(
    engine, cluster, dialect, tmp_path
) -> None:
    ref = submit(engine, dialect, nodes=1)
    pod = make_pod(cluster, dialect)
    cluster.put("pods", pod)
    view = engine._views[ref.job_id]
    wait_for(lambda: len(view._watch.pods) == 1, "it sees the pod")
    assert not warns_of_forgotten_loss(engine.status(ref))
    again = {**pod, "metadata": {**pod["metadata"], "uid": "another"}}
    cluster.put("pods", again)
    status = wait_for_status(
        engine, ref, warns_of_forgotten_loss, "the client that saw it reports it"
    )
    assert status.conditions == engine.status(ref).conditions, "once, not whenever it is asked"
    kind, maker = dialect.find_pod_maker(main_of(cluster, dialect))
    made = {
        "metadata": {"name": "e1"},
        "involvedObject": {"kind": kind, "name": maker},
        "reason": dialect.pod_made,
        "count": 2,
        "lastTimestamp": "2026-01-31T12:00:00Z",
    }
    cluster.put("events", made)
    with closing_engine(dialect, tmp_path / "elsewhere") as other:
        wait_for_status(other, ref, warns_of_forgotten_loss, "and one that did not see it")

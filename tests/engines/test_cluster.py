"""ClusterEngine without a cluster: what it asks of an API server, in which order, what it makes of answers.

Each test runs with both dialects, one whose objects are held back and end, and one whose do neither.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kube.api_server import write_kubeconfig
from kube.fake_cluster import make_fake_pod
from kube.plans import make_pod_plan
from kube.storing_cluster import StoringCluster, merge, storing_cluster
from stateful_set_dialect import STATEFUL_SET
from waits import wait_for

from windlass import names
from windlass.engines.cluster import ClusterEngine
from windlass.engines.dialects.dialect import Dialect
from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.protocol import JobRef, check_capabilities
from windlass.errors import EngineMissing, JobNotFound, SpecError, WindlassError
from windlass.kube.kinds import ObjectKind
from windlass.kube.needs import Need
from windlass.plan.plan import Plan
from windlass.settings import read_settings
from windlass.spec.work import Calls
from windlass.wire.initial_status import make_first_status, render_status
from windlass.wire.job_folder import JobFolder, write_atomically
from windlass.wire.last_word import render_last_word
from windlass.wire.status import Phase

DIALECTS = [KUBERNETES, STATEFUL_SET]
TRAINJOBS = ObjectKind("trainer.kubeflow.org/v1alpha1", "trainjobs", "TrainJob")


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request: pytest.FixtureRequest) -> Dialect:
    chosen: Dialect = request.param
    return chosen


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StoringCluster]:
    with storing_cluster() as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=server.url)))
        server.served = {"apps/v1": ["statefulsets", "deployments"]}
        yield server


@pytest.fixture
def engine(cluster: StoringCluster, dialect: Dialect, tmp_path: Path) -> Iterator[ClusterEngine]:
    with closing_engine(dialect, tmp_path) as made:
        yield made


class closing_engine:  # noqa: N801 - used like contextlib.closing
    """An engine whose threads end with the test."""

    def __init__(self, dialect: Dialect, home: Path) -> None:
        environ = {"WINDLASS_HOME": str(home / "home"), "HOME": str(home)}
        self._engine = ClusterEngine(dialect, read_settings(flags={}, environ=environ, start=home))

    def __enter__(self) -> ClusterEngine:
        return self._engine

    def __exit__(self, *_: object) -> None:
        for view in self._engine._views.values():
            view.close()


def make_job_plan(dialect: Dialect, **asked: Any) -> Plan:
    plan = make_pod_plan(detach=True, **{"nodes": 2, **asked})
    return replace(plan, engine=dialect.name, created_at_s=time.time())


def submit(engine: ClusterEngine, dialect: Dialect, **asked: Any) -> JobRef:
    return engine.submit(make_job_plan(dialect, **asked), b"payload")


def writes(cluster: StoringCluster) -> list[Any]:
    return [seen for seen in cluster.seen if seen.method != "GET"]


def main_of(cluster: StoringCluster, dialect: Dialect) -> dict[str, Any]:
    (body,) = cluster.objects[dialect.kind.plural]
    return body


def make_pod(cluster: StoringCluster, dialect: Dialect, index: int = 0) -> dict[str, Any]:
    """A pod of the job that is there, of which nobody can say yet where it runs."""
    main = main_of(cluster, dialect)
    pod = make_fake_pod(f"{main['metadata']['name']}-{index}", index)
    pod["metadata"]["labels"] = {
        **main["spec"]["template"]["metadata"]["labels"],
        **{label: str(index) for label in dialect.lead_labels},
    }
    pod["metadata"]["ownerReferences"][0]["uid"] = main["metadata"]["uid"]
    pod["status"] = {"phase": "Pending"}
    return pod


# -- submit ----------------------------------------------------------------------------------------


def test_the_main_object_is_made_first_owns_the_others_and_is_started_last(
    engine, cluster, dialect
) -> None:
    ref = submit(engine, dialect, volumes=())
    first, *others, last = writes(cluster)
    assert (first.method, first.path.rpartition("/")[2]) == ("POST", dialect.kind.plural)
    assert names.ANNOTATION_SUBMIT in first.body["metadata"]["annotations"]
    uid = main_of(cluster, dialect)["metadata"]["uid"]
    for other in others:
        (owner,) = other.body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"]) == (uid, dialect.kind.name)
    kinds = sorted(other.path.rpartition("/")[2] for other in others)
    assert kinds == ["networkpolicies", "secrets", "services", "services"]
    assert (last.method, last.path.rpartition("/")[2]) == ("PATCH", ref.job_id)
    assert names.ANNOTATION_SUBMIT not in main_of(cluster, dialect)["metadata"]["annotations"]
    if dialect.start is not None:
        assert merge(first.body, dialect.start) != first.body, "it was held back"
        assert merge(main_of(cluster, dialect), dialect.start) == main_of(cluster, dialect)


def test_an_export_is_what_a_submit_makes(engine, cluster, dialect) -> None:
    plan = make_job_plan(dialect)
    documents = engine.render(plan, payload=b"payload")
    engine.submit(plan, b"payload")
    created = {
        (seen.body["kind"], seen.body["metadata"]["name"]): seen.body
        for seen in writes(cluster)
        if seen.method == "POST"
    }
    assert [document["kind"] for document in documents][-1] == dialect.kind.name
    assert {(one["kind"], one["metadata"]["name"]) for one in documents} == set(created)
    for document in documents:
        made = created[document["kind"], document["metadata"]["name"]]
        made["metadata"].pop("ownerReferences", None)
        made["metadata"].get("annotations", {}).pop(names.ANNOTATION_SUBMIT, None)
        if (
            document["kind"] == "Secret"
        ):  # the agent differs in byte code, keys are never twice the same
            assert set(document["data"]) < set(made["data"])
        elif document["kind"] == dialect.kind.name:
            assert document["spec"].keys() == made["spec"].keys()
            assert document["metadata"] == made["metadata"]
        else:
            assert document == made


@pytest.mark.parametrize("refused", ["secrets", "services", "networkpolicies"])
def test_a_submit_that_breaks_leaves_nothing(engine, cluster, dialect, refused, tmp_path) -> None:
    cluster.refused = refused
    with pytest.raises(WindlassError, match=f"{refused} are refused here"):
        submit(engine, dialect)
    assert cluster.names() == []
    assert engine.jobs_here() == []
    assert [path.name for path in (tmp_path / "home").glob("*/*")] == []


def test_what_the_cluster_lacks_is_told_before_anything_is_made(cluster, dialect, tmp_path) -> None:
    lacking = replace(dialect, needs=(Need(kind=TRAINJOBS, product="Kubeflow Trainer 2"),))
    with closing_engine(lacking, tmp_path) as engine:
        with pytest.raises(EngineMissing) as caught:
            submit(engine, lacking)
        assert caught.value.message == (
            "this cluster does not serve TrainJob (trainer.kubeflow.org/v1alpha1)"
        )
        assert "install Kubeflow Trainer 2" in caught.value.hint
        cluster.served["trainer.kubeflow.org/v2"] = ["trainjobs"]
        with pytest.raises(EngineMissing, match=r"it has trainer\.kubeflow\.org/v2"):
            submit(engine, lacking)
        assert cluster.names() == []
        assert writes(cluster) == []
        cluster.served["trainer.kubeflow.org/v1alpha1"] = ["trainjobs"]
        submit(engine, lacking)
    assert main_of(cluster, dialect)


def test_what_a_dialect_cannot_is_refused(dialect) -> None:
    unable = replace(dialect, can=dialect.can - {"timeout"})
    plan = make_job_plan(dialect, timeout_s=60.0)
    check_capabilities(dialect, plan)
    with pytest.raises(SpecError, match=f"the engine {dialect.name} cannot do: timeout"):
        check_capabilities(unable, plan)


# -- looking ---------------------------------------------------------------------------------------


def wait_for_status(engine: ClusterEngine, ref: JobRef, is_so: Any, what: str) -> Any:
    wait_for(lambda: is_so(engine.status(ref)), what)
    return engine.status(ref)


def test_what_blocks_its_pods_is_in_its_status(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    pod = make_pod(cluster, dialect)
    said = {
        "type": "PodScheduled",
        "status": "False",
        "reason": "Unschedulable",
        "message": "0/2 nodes are available: 2 Insufficient nvidia.com/gpu.",
        "lastTransitionTime": "2026-01-31T12:00:00Z",
    }
    cluster.put("pods", {**pod, "status": {"phase": "Pending", "conditions": [said]}})
    status = wait_for_status(
        engine,
        ref,
        lambda status: any(c.reason == "Unschedulable" for c in status.conditions),
        "the status says that its pod has no place",
    )
    assert not status.phase.is_final


def test_strangers_pods_are_not_its_own(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    pod = make_pod(cluster, dialect)
    pod["metadata"]["ownerReferences"][0]["uid"] = "somebody-else"
    cluster.put("pods", pod)
    engine.status(ref)
    view = engine._views[ref.job_id]
    wait_for(lambda: view._sight.wait(0), "all was seen")
    assert view._sight.pods == []


def test_one_that_was_deleted_is_cancelled(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    wait_for_status(engine, ref, lambda status: not status.phase.is_final, "it is there")
    wait_for(lambda: engine._views[ref.job_id]._sight.job is not None, "it was seen")
    cluster.put(dialect.kind.plural)
    status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    assert status.phase is Phase.CANCELLED
    assert status.verdict.message == f"its {dialect.kind.name} was deleted from the cluster"


def test_an_object_that_failed_ends_its_job(cluster, tmp_path) -> None:
    """Of a dialect whose objects end."""
    with closing_engine(KUBERNETES, tmp_path) as engine:
        ref = submit(engine, KUBERNETES)
        job = main_of(cluster, KUBERNETES)
        said = {"type": "Failed", "status": "True", "reason": "MaxFailedIndexesExceeded"}
        said |= {"message": "has failed", "lastTransitionTime": "2026-01-31T12:00:00Z"}
        cluster.put("jobs", {**job, "status": {"conditions": [said]}})
        status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    assert status.phase is Phase.FAILED
    assert "MaxFailedIndexesExceeded: has failed" in status.verdict.message


def test_jobs_are_listed_newest_first_and_computes_by_their_work(engine, cluster, dialect) -> None:
    old = submit(engine, dialect, job_id="old-ab2cd")
    new = submit(engine, dialect, job_id="new-ab2cd", work=Calls())
    assert [ref.job_id for ref in engine.jobs()] == [new.job_id, old.job_id]
    assert engine.computes() == [new]
    assert str(new) == f"{dialect.name}://space/new-ab2cd"


def test_one_that_is_not_there_is_not_found(engine, cluster, dialect) -> None:
    cluster.objects = {dialect.kind.plural: [], "secrets": []}
    with pytest.raises(JobNotFound, match="there is no job 'nope-ab2cd'") as caught:
        engine.status(JobRef(dialect.name, "nope-ab2cd", "space"))
    assert f"windlass ls -e {dialect.name}" in caught.value.hint


def test_another_client_attaches_with_what_the_secret_holds(
    engine, cluster, dialect, tmp_path
) -> None:
    ref = submit(engine, dialect)
    with closing_engine(dialect, tmp_path / "elsewhere") as other:
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        assert other.plan(ref).job_id == ref.job_id
        assert not other.is_made_here(ref)
        assert not other.status(ref).phase.is_final
    assert engine.is_made_here(ref)


# -- ending ----------------------------------------------------------------------------------------


def test_one_without_a_lead_is_cancelled_by_deleting_it(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect)
    wait_for_status(engine, ref, lambda status: not status.phase.is_final, "it is there")
    engine.cancel(ref, why="enough")
    status = wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    assert (status.phase, status.verdict.message) == (Phase.CANCELLED, "enough")
    assert cluster.names() == []
    engine.cancel(ref)  # twice is once


def test_only_what_has_ended_is_removed(engine, cluster, dialect, tmp_path) -> None:
    ref = submit(engine, dialect)
    with pytest.raises(SpecError, match="is still pending"):
        engine.remove(ref)
    engine.cancel(ref)
    wait_for_status(engine, ref, lambda status: status.phase.is_final, "it has ended")
    engine.remove(ref)
    assert (cluster.names(), engine.jobs()) == ([], [])
    assert not (tmp_path / "home" / dialect.name / ref.job_id).exists()


def test_what_never_ends_by_itself_is_removed_by_the_client_that_saw_the_end(
    engine, cluster, dialect, tmp_path
) -> None:
    """And what does end stays for others, as long as its ttl says."""
    ref = submit(engine, dialect)
    wait_for(lambda: engine._views[ref.job_id]._sight.wait(0), "it was seen")
    folder = JobFolder(tmp_path / "home" / dialect.name / ref.job_id)
    last = replace(make_first_status(engine.plan(ref)), phase=Phase.SUCCEEDED, ended_at_s=1.0)
    write_atomically(folder.status, render_status(last))
    assert engine.status(ref).phase is Phase.SUCCEEDED
    is_there = bool(cluster.objects[dialect.kind.plural])
    assert is_there is not dialect.stays_up
    assert engine.status(ref).phase is Phase.SUCCEEDED


def test_one_that_was_seen_to_end_and_stayed_goes_when_jobs_are_listed(
    engine, cluster, dialect, tmp_path
) -> None:
    """Its client was killed before it could remove it; its status is here, and answers as before."""
    ref = submit(engine, dialect)
    folder = JobFolder(tmp_path / "home" / dialect.name / ref.job_id)
    last = replace(make_first_status(engine.plan(ref)), phase=Phase.SUCCEEDED, ended_at_s=1.0)
    write_atomically(folder.status, render_status(last))
    with closing_engine(dialect, tmp_path) as next_client:
        assert next_client.jobs() == [ref]
        assert bool(cluster.objects[dialect.kind.plural]) is not dialect.stays_up
        assert next_client.status(ref).phase is Phase.SUCCEEDED


def test_one_whose_lead_answers_no_more_is_known_by_its_last_word(cluster, tmp_path) -> None:
    """A lead that stays up answers for the job's time to live; its log keeps what it said last."""
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


def test_a_compute_grows_by_a_patch(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect, work=Calls())
    engine.grow(ref, [2], 3)
    assert dialect.num_pods(main_of(cluster, dialect)) == 3
    engine.keep_place(ref, 12.0)
    annotations = main_of(cluster, dialect)["metadata"]["annotations"]
    assert annotations[names.ANNOTATION_KEEP_PLACE] == "12"
    engine.keep_place(ref, None)
    assert names.ANNOTATION_KEEP_PLACE not in main_of(cluster, dialect)["metadata"]["annotations"]


def test_a_kind_that_cannot_be_resized_says_so(cluster, dialect, tmp_path) -> None:
    with closing_engine(replace(dialect, resize=None), tmp_path) as engine:
        ref = submit(engine, dialect, work=Calls())
        before = main_of(cluster, dialect)
        with pytest.raises(SpecError, match=f"nodes of a {dialect.kind.name} cannot become more"):
            engine.grow(ref, [2], 3)
    assert main_of(cluster, dialect) == before


def test_there_is_nobody_to_dial_while_node_0_does_not_run(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect, work=Calls())
    cluster.put("pods", make_pod(cluster, dialect))
    with pytest.raises(ConnectionRefusedError, match="node 0 of train-ab2cd does not run"):
        engine.dial(ref)
    lead = next(iter(dialect.lead_labels))
    asked = [seen.params.get("labelSelector", "") for seen in cluster.seen if seen.method == "GET"]
    assert f"{names.LABEL_JOB}={ref.job_id},{lead}=0" in asked

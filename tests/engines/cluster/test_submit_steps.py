"""ClusterEngine without a cluster: the requests of a submission and their order."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from cluster_engines import SOURCE, closing_engine, main_of, make_job_plan, submit, writes
from kube.api_server import refuse
from kube.storing_cluster import merge
from waits import wait_for

from windlass import names
from windlass.engines.cluster.lease_object import lease_name
from windlass.engines.dialects.trainjob import TRAINJOB
from windlass.engines.protocol import check_capabilities
from windlass.errors import EngineMissing, SpecError, WindlassError
from windlass.kube.client.access import Need
from windlass.kube.diagnosis.blocker import HALF_SUBMITTED
from windlass.kube.objects.kinds import TRAIN_JOBS
from windlass.wire.status import Phase


def test_main_object_is_created_first_and_started_last(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect, volumes=())
    is_needed = dialect.prerequisite is not None
    sent = writes(cluster)[is_needed + has_lease(dialect) :]
    if has_lease(dialect):
        ended = sent.pop()
        assert (ended.method, "-lease-" in ended.path) == ("DELETE", True)
    first, *others, last = sent
    assert (first.method, first.path.rpartition("/")[2]) == ("POST", dialect.kind.plural)
    assert names.ANNOTATION_SUBMIT in first.body["metadata"]["annotations"]
    uid = main_of(cluster, dialect)["metadata"]["uid"]
    for other in others:
        (owner,) = other.body["metadata"]["ownerReferences"]
        assert (owner["uid"], owner["kind"]) == (uid, dialect.kind.name)
    kinds = sorted(other.path.rpartition("/")[2] for other in others)
    adopted = [ref.job_id] if is_needed else []  # started by a patch
    parts = ["secrets"] * (kinds.count("secrets") - 1)
    assert parts, "the agent is in Secrets of its own"
    assert kinds == sorted(["networkpolicies", "secrets", *parts, "services", "services", *adopted])
    assert (last.method, last.path.rpartition("/")[2]) == ("PATCH", dialect.make_name(ref.job_id))
    assert names.ANNOTATION_SUBMIT not in main_of(cluster, dialect)["metadata"]["annotations"]
    if dialect.start is not None:
        assert merge(first.body, dialect.start) != first.body, "it was held back"
        assert merge(main_of(cluster, dialect), dialect.start) == main_of(cluster, dialect)


def has_lease(dialect: Any) -> bool:
    return dialect.stays_up or dialect.prerequisite is not None


def owners_of(body: Any) -> list[str]:
    return [owner["name"] for owner in body["metadata"].get("ownerReferences") or ()]


@pytest.mark.parametrize("queue", ["", "training"])
@pytest.mark.parametrize("detach", [True, False])
def test_lease_owns_objects_that_would_not_end_otherwise(
    engine, cluster, dialect, queue, detach
) -> None:
    """A suspended object never runs by itself, except with Kueue or for a kind that starts immediately."""
    plan = replace(make_job_plan(dialect, queue=queue), detach=detach)
    engine.submit(plan, b"payload")
    name = lease_name(plan)
    is_leased = bool(queue) or has_lease(dialect)
    seen = writes(cluster)
    lease = [
        one for one in seen if one.path.endswith("/jobs") and not one.body["spec"]["parallelism"]
    ]
    assert lease == seen[: int(is_leased)], "it is the first of all"
    main = next(
        one for one in seen if one.path.endswith(f"/{dialect.kind.plural}") and one not in lease
    )
    if is_leased:
        # a TrainJob cannot be garbage-collected after its runtime was deleted
        assert owners_of(main.body) == ([name] if dialect.prerequisite is None else [])
        assert lease[0].body["spec"]["completions"] == 0
        assert lease[0].body["spec"]["ttlSecondsAfterFinished"] >= 120
        assert names.LABEL_JOB not in lease[0].body["metadata"]["labels"], "it is no job"
    if dialect.prerequisite is not None:
        made = next(
            one for one in seen if one.path.endswith(f"/{dialect.prerequisite.kind.plural}")
        )
        assert owners_of(made.body) == [name]
    (there,) = [
        one
        for one in cluster.objects[dialect.kind.plural]
        if "-lease" not in one["metadata"]["name"]
    ]
    is_kept = dialect.stays_up and not detach
    assert owners_of(there) == ([name] if is_kept else [])
    assert names.ANNOTATION_SUBMIT not in there["metadata"]["annotations"]


def test_submit_without_the_right_to_create_a_lease(engine, cluster, dialect) -> None:
    cluster.refusals = {("POST", "/jobs"): refuse(403, "Forbidden", "you may not create jobs")}
    if dialect.kind.plural == "jobs":
        with pytest.raises(WindlassError, match="you may not create jobs"):
            submit(engine, dialect, volumes=())
        return
    submit(engine, dialect, volumes=())
    assert owners_of(main_of(cluster, dialect)) == []


def test_lease_is_renewed_if_pods_stay_up(engine, cluster, dialect) -> None:
    plan = replace(make_job_plan(dialect), detach=False)
    ref = engine.submit(plan, b"payload")

    def renewals() -> list[Any]:
        patches = [one for one in writes(cluster) if one.path.endswith(f"/jobs/{lease_name(plan)}")]
        return [one for one in patches if "spec" in one.body]

    with engine.hold(ref):
        if not dialect.stays_up:
            assert renewals() == []
            return
        wait_for(lambda: bool(renewals()), "the lease is renewed")
    assert renewals()[0].body["spec"]["ttlSecondsAfterFinished"] >= plan.lease_s + 120


def test_submit_interrupted_before_its_secret_is_listed(engine, cluster, dialect) -> None:
    ref = submit(engine, dialect, volumes=())
    engine.let_go(ref)
    cluster.put("secrets")
    (main,) = cluster.objects[dialect.kind.plural]
    with pytest.raises(WindlassError, match="was interrupted before it was complete"):
        engine.status(ref)  # its Secret was deleted
    mark = {"metadata": {"annotations": {names.ANNOTATION_SUBMIT: "mark"}}}
    cluster.put(dialect.kind.plural, merge(main, mark))
    assert [one.job_id for one in engine.jobs()] == [ref.job_id]
    status = engine.status(ref)
    assert (status.job_id, status.num_nodes, status.phase) == (ref.job_id, 2, Phase.PENDING)
    assert [one.reason for one in status.conditions] == [HALF_SUBMITTED]
    engine.remove(ref)
    assert [one for one in cluster.names() if ref.job_id in one and "-lease" not in one] == []


def test_training_library_is_in_the_secret_with_the_agent(engine, cluster, dialect) -> None:
    plan = make_job_plan(dialect, volumes=(), env={names.TRAIN: "/windlass/job/files/train.pyz"})
    documents = engine.render(plan, payload=b"payload")
    engine.submit(plan, b"payload")
    exported = [document for document in documents if document["kind"] == "Secret"]
    for secrets in (exported, cluster.objects["secrets"]):
        own, *parts = sorted(secrets, key=lambda body: body["metadata"]["name"])
        assert set(own["data"]) & {names.PLAN_FILE, names.AGENT_FILE} == {names.PLAN_FILE}
        assert [body["metadata"]["name"] for body in parts] == [
            f"{plan.job_id}-files-{number}" for number in range(len(parts))
        ]
        files = {key.rpartition(".")[0] for body in parts for key in body["data"]}
        assert files == {names.AGENT_FILE, names.TRAIN_FILE, names.PAYLOAD_FILE}
    assert '"mountPath": "/windlass/parts"' in json.dumps(documents)


@pytest.mark.parametrize(
    ("selector", "is_let_out"),
    [({}, True), ({"matchLabels": {"app.kubernetes.io/name": "somebody-else"}}, False)],
    ids=["all pods", "others"],
)
def test_egress_rules_are_added_if_a_policy_denies_egress(
    engine, cluster, dialect, selector, is_let_out
) -> None:
    spec = {"podSelector": selector, "policyTypes": ["Ingress", "Egress"]}
    cluster.put("networkpolicies", {"metadata": {"name": "theirs", "uid": "u"}, "spec": spec})
    ref = submit(engine, dialect, volumes=())
    policies = cluster.objects["networkpolicies"]
    (own,) = [body for body in policies if body["metadata"]["name"] == ref.job_id]
    assert ("egress" in own["spec"]) == is_let_out


def test_export_matches_a_submit(engine, cluster, dialect) -> None:
    plan = make_job_plan(dialect)
    documents = engine.render(plan, payload=b"payload")
    engine.submit(plan, b"payload")
    created = {
        (seen.body["kind"], seen.body["metadata"]["name"]): seen.body
        for seen in writes(cluster)
        if seen.method == "POST" and "-lease" not in seen.body["metadata"]["name"]
    }
    assert [document["kind"] for document in documents][-1] == dialect.kind.name
    exported = {(one["kind"], one["metadata"]["name"]) for one in documents}
    assert {name for name in exported ^ set(created) if "-files-" not in name[1]} == set()
    for document in documents:
        if "-files-" in document["metadata"]["name"]:  # byte code and the parts differ
            continue
        made = created[document["kind"], document["metadata"]["name"]]
        made["metadata"].pop("ownerReferences", None)
        made["metadata"].get("annotations", {}).pop(names.ANNOTATION_SUBMIT, None)
        if document["kind"] == "Secret":
            # the byte code of the agent differs, and each submit has new keys
            assert set(document["data"]) < set(made["data"])
        elif document["kind"] in (
            dialect.kind.name,
            "TrainingRuntime",
        ):  # the submission mounts more files
            assert document["spec"].keys() == made["spec"].keys()
            assert document["metadata"] == made["metadata"]
        else:
            assert document == made


@pytest.mark.parametrize("refused", ["secrets", "services", "networkpolicies"])
def test_failed_submit_leaves_nothing(engine, cluster, dialect, refused, tmp_path) -> None:
    cluster.refused = refused
    with pytest.raises(WindlassError, match=f"{refused} are refused here"):
        submit(engine, dialect)
    assert cluster.names() == [SOURCE]
    assert engine.jobs_here() == []
    assert [path.name for path in (tmp_path / "home").glob("*/*")] == []


@pytest.mark.parametrize("dialect", [TRAINJOB], indirect=True)
def test_submit_is_retried_if_a_webhook_does_not_know_the_runtime_yet(
    engine, cluster, dialect, monkeypatch
) -> None:
    """A webhook reads from a cache, which may be slightly out of date."""
    create, refusals = cluster._create, [1, 2]

    def answer(seen: Any) -> Any:
        if seen.path.endswith("/trainjobs") and refusals:
            refusals.pop()
            return refuse(403, "Forbidden", 'TrainingRuntime "train-ab2cd" not found')
        return create(seen)

    monkeypatch.setattr(cluster, "_create", answer)
    submit(engine, dialect)
    assert refusals == []
    assert main_of(cluster, dialect)


def test_missing_api_is_reported_before_anything_is_created(cluster, dialect, tmp_path) -> None:
    cluster.served.pop(TRAIN_JOBS.api_version)
    lacking = replace(dialect, needs=(Need(kind=TRAIN_JOBS, product="Kubeflow Trainer 2"),))
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
        assert cluster.names() == [SOURCE]
        assert writes(cluster) == []
        cluster.served["trainer.kubeflow.org/v1alpha1"] = ["trainjobs"]
        submit(engine, lacking)
    assert main_of(cluster, dialect)


def test_missing_capability_is_refused(dialect) -> None:
    unable = replace(dialect, can=dialect.can - {"timeout"})
    plan = make_job_plan(dialect, timeout_s=60.0)
    check_capabilities(dialect, plan)
    with pytest.raises(SpecError, match=f"the engine {dialect.name} does not support: timeout"):
        check_capabilities(unable, plan)

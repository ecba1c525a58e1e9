"""Older operators and missing rights: worked around, or reported with the next step."""

from __future__ import annotations

from pathlib import Path

import pytest
from cluster_engines import submit
from kube.api_server import Answer, Seen, refuse

from windlass.engines.dialects.kubernetes import KUBERNETES
from windlass.engines.dialects.monarchmesh import MONARCHMESH
from windlass.engines.dialects.pytorchjob import PYTORCHJOB
from windlass.engines.dialects.trainjob import RUNTIME, TRAINJOB
from windlass.errors import SpecError
from windlass.kube.client.api_errors import Forbidden
from windlass.observe.doctor_kubernetes import check_cluster
from windlass.settings import Settings, read_settings

on_trainjob = pytest.mark.parametrize("dialect", [TRAINJOB], indirect=True)
NO = Answer(body={"status": {"allowed": False}})
FORBIDDEN = refuse(
    403,
    "Forbidden",
    f'clustertrainingruntimes.trainer.kubeflow.org "{RUNTIME}" is forbidden: User "u" cannot get '
    'resource "clustertrainingruntimes" in API group "trainer.kubeflow.org" at the cluster scope',
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    environ = {"WINDLASS_HOME": str(tmp_path / "home"), "HOME": str(tmp_path)}
    return read_settings(flags={"engine": "trainjob"}, environ=environ, start=tmp_path)


@on_trainjob
def test_field_unknown_to_an_older_operator_is_left_out(engine, cluster, dialect, monkeypatch):
    create = cluster._create

    def answer(seen: Seen) -> Answer:
        if "activeDeadlineSeconds" in seen.body.get("spec", {}):
            text = 'strict decoding error: unknown field "spec.activeDeadlineSeconds"'
            return refuse(400, "BadRequest", text)
        return create(seen)

    monkeypatch.setattr(cluster, "_create", answer)
    submit(engine, dialect, timeout_s=60.0)
    (job,) = cluster.objects["trainjobs"]
    assert "activeDeadlineSeconds" not in job["spec"]
    assert job["spec"]["trainer"]["numNodes"] == 2


@on_trainjob
def test_hint_without_the_right_to_read_cluster_runtimes(engine, cluster, dialect):
    cluster.put("trainingruntimes")
    cluster.refusals["GET", f"/clustertrainingruntimes/{RUNTIME}"] = FORBIDDEN
    with pytest.raises(Forbidden, match="you may not get clustertrainingruntimes") as caught:
        submit(engine, dialect)
    assert "TrainingRuntime of namespace space with --runtime" in caught.value.hint
    assert "a ClusterRole that may get clustertrainingruntimes" in caught.value.hint
    assert "windlass doctor -e trainjob" in caught.value.hint
    assert cluster.objects.get("trainjobs", []) == []


def test_doctor_warns_and_prints_the_cluster_role(cluster, settings):
    cluster.refusals["POST", "/selfsubjectaccessreviews"] = NO
    check = {check.name: check for check in check_cluster(settings)}["runtimes"]
    assert check.state == "warn"
    assert "you may not get clustertrainingruntimes" in check.found
    assert RUNTIME in check.found, "that of the namespace is seen"
    assert "--runtime" in check.hint
    assert "kind: ClusterRole" in check.more
    cluster.refusals.clear()
    check = {check.name: check for check in check_cluster(settings)}["runtimes"]
    assert (check.state, check.found) == ("ok", f"available: {RUNTIME}")


@on_trainjob
def test_unknown_runtime_is_named_with_the_known_ones(engine, cluster, dialect):
    cluster.put("clustertrainingruntimes")
    with pytest.raises(
        SpecError, match="'torch-distribted' is available in namespace space"
    ) as caught:
        submit(engine, dialect, runtime="torch-distribted")
    assert RUNTIME in caught.value.hint


@pytest.mark.parametrize("dialect", [TRAINJOB, PYTORCHJOB, MONARCHMESH, KUBERNETES], indirect=True)
def test_hint_names_the_role_of_the_engine(engine, cluster, dialect):
    cluster.refusals["POST", "/selfsubjectrulesreviews"] = Answer(body={"status": {}})
    cluster.refusals["POST", "/selfsubjectaccessreviews"] = NO
    with pytest.raises(Forbidden) as caught:
        submit(engine, dialect)
    assert f"windlass doctor -e {dialect.name} --role`" in caught.value.hint

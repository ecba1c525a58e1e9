"""Engine that a TrainerClient selects, and the reason, against a server with scripted APIs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kube.api_server import write_kubeconfig
from kube.storing_cluster import StoringCluster, storing_cluster

from windlass.errors import EngineError, SpecError
from windlass.trainer import KubernetesBackendConfig, LocalProcessBackendConfig, TrainerClient
from windlass.trainer.engine_pick import pick_engine

SERVED = {"trainer.kubeflow.org/v1alpha1": ["trainjobs", "trainingruntimes"]}


@pytest.fixture
def cluster(tmp_path, monkeypatch) -> Iterator[StoringCluster]:
    monkeypatch.chdir(tmp_path)
    with storing_cluster() as cluster:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path, server=cluster.url)))
        yield cluster


def pick(engine="", backend=None, **settings) -> tuple[str, str]:
    choice, _ = pick_engine(engine, backend, settings)
    return choice.engine, choice.why


@pytest.mark.parametrize("backend", [None, KubernetesBackendConfig()])
def test_trainjobs_if_the_cluster_serves_them_else_jobs(cluster, backend):
    engine, why = pick(backend=backend)
    assert engine == "kubernetes"
    assert why.endswith("; this cluster does not serve TrainJob (trainer.kubeflow.org/v1alpha1)")
    cluster.served = SERVED
    engine, why = pick(backend=backend)
    assert engine == "trainjob"
    assert why.endswith("; it serves TrainJob")


def test_explicit_engine_wins(cluster, monkeypatch):
    cluster.served = SERVED
    assert pick(engine="pytorchjob") == ("pytorchjob", "engine='pytorchjob'")
    assert pick(backend=LocalProcessBackendConfig())[0] == "local"
    assert pick("kubernetes", KubernetesBackendConfig())[0] == "kubernetes"
    monkeypatch.setenv("WINDLASS_ENGINE", "local")
    assert pick() == ("local", "environment WINDLASS_ENGINE")
    with pytest.raises(SpecError, match="unknown engine 'trainjobs'") as caught:
        pick(engine="trainjobs")
    assert "did you mean trainjob?" in str(caught.value)


def test_backend_location_is_a_setting(cluster):
    _, settings = pick_engine("", KubernetesBackendConfig(namespace="mine", context="here"), {})
    assert (settings.namespace, settings.context) == ("mine", "here")
    with pytest.raises(ValueError, match="set KUBECONFIG"):
        pick(backend=KubernetesBackendConfig(config_file="/a/file"))


def test_without_a_kubeconfig(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    engine, why = pick()
    assert engine == "local"
    assert why.startswith("no kubeconfig found")
    with pytest.raises(EngineError, match="no kubeconfig found"):
        pick(backend=KubernetesBackendConfig())


def test_selection_is_logged_in_one_line(cluster, capsys):
    TrainerClient()
    assert capsys.readouterr().err == (
        "windlass: TrainerClient uses the engine kubernetes in namespace space (the kubeconfig's context "
        "here; this cluster does not serve TrainJob (trainer.kubeflow.org/v1alpha1))\n"
    )
